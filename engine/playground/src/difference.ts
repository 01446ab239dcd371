// The words in which two answers differ, by their longest common subsequence.
import { element } from "./element";

const MOST_WORDS = 1500; // the table below has the square of this many entries

const words = (text: string): string[] => text.split(/(?<=\s)/);

export function difference(left: string, right: string): HTMLElement {
  const [allA, allB] = [words(left), words(right)];
  const [a, b] = [allA.slice(0, MOST_WORDS), allB.slice(0, MOST_WORDS)];
  const common = table(a, b);
  const line = element("p");
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      line.append(a[i]!);
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && common[i + 1]![j]! >= common[i]![j + 1]!)) {
      line.append(element("del", a[i++]!));
    } else {
      line.append(element("ins", b[j++]!));
    }
  }
  if (Math.max(allA.length, allB.length) > MOST_WORDS)
    line.append(element("em", ` … (the first ${MOST_WORDS} words are compared)`));
  return line;
}

/** `common[i][j]`: words in the longest common subsequence of `a` from i on and `b` from j on. */
function table(a: string[], b: string[]): Uint16Array[] {
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i]![j] = a[i] === b[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
  return common;
}
