// Sets the theme before anything is painted: the chosen one, else the system's, also as it changes.
{
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const take = () => {
    root.dataset.theme = dark.matches ? "dark" : "light";
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  };
  take();
  dark.addEventListener("change", () => {
    take();
    document.dispatchEvent(new CustomEvent("theme"));
  });
}
