// What was done last.
let text = $state("");
let timer: ReturnType<typeof setTimeout>;

export const said = {
  get text() {
    return text;
  },
};

export function say(what: string): void {
  text = what;
  clearTimeout(timer);
  timer = setTimeout(() => (text = ""), 6000);
}
