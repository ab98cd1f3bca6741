// What the theme leaves out: levels and names for screen readers, the keyboard where a box scrolls.
for (const one of document.querySelectorAll(".caption[role=heading]")) one.ariaLevel = "2";
for (const one of document.querySelectorAll(".sidebar-drawer")) one.ariaLabel = "All pages";
for (const one of document.querySelectorAll(".toc-drawer")) one.ariaLabel = "This page";
for (const one of document.querySelectorAll("pre, .table-wrapper, .math")) {
  if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
}
