// Light or dark, as chosen in this browser, or as the system has it.
const NAME = "tq.theme";

let chosen = $state(localStorage.getItem(NAME) ?? "light dark");
document.documentElement.style.colorScheme = chosen;

export const theme = {
  get chosen() {
    return chosen;
  },
  set chosen(value: string) {
    document.documentElement.style.colorScheme = value; // before those that read the colours hear of it
    localStorage.setItem(NAME, value);
    chosen = value;
  },
};
