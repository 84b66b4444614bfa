/** What was typed and did not arrive yet, for each conversation. It outlives a reload of the page. */
const key = (conversation: string) => `chatelaine.draft.${conversation}`;

export const readDraft = (conversation: string) => sessionStorage.getItem(key(conversation)) ?? '';

export function keepDraft(conversation: string, text: string) {
  if (text) sessionStorage.setItem(key(conversation), text);
  else sessionStorage.removeItem(key(conversation));
}
