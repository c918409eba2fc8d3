// Sets the chosen theme before anything is painted; without a choice the system's counts.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
