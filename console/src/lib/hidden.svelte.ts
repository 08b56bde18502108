// Keys whose values are not shown, such as password: kept in this browser.
const NAME = "tq.hidden";
const USUAL = "password, secret, token, authorization, api_key";

let keys = $state(localStorage.getItem(NAME) ?? USUAL);

const list = $derived(keys.split(",").map((one) => one.trim()).filter(Boolean));

export const hidden = {
  get keys() {
    return keys;
  },
  set keys(value: string) {
    keys = value;
    localStorage.setItem(NAME, value);
  },
  get pattern(): RegExp | undefined {
    const escaped = list.map((one) => one.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    return escaped.length ? new RegExp(`^(${escaped.join("|")})$`, "i") : undefined;
  },
};
