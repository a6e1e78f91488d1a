/** A member of a JSON object, as written in the text. */
export interface Member {
  name: string;
  /** The member's value without the white space around it. */
  value: string;
  /** The member's value with the white space around it, from the colon to the comma or brace. */
  padded: string;
}

/** The members of a JSON object in their order. */
export interface Members {
  all: Member[];
  /** Reports whether there is white space elsewhere than around a value. */
  loose: boolean;
}

const space = /[ \t\n\r]*/y;

/**
 * Returns the members of the object in a text. JSON.parse would lose the spelling of numbers, and the order of two
 * members with one name. It throws if the text is not a JSON object.
 */
export function members(text: string): Members {
  const value: unknown = JSON.parse(text); // from here on the text is known to be JSON
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("want a JSON object");
  const all: Member[] = [];
  let loose = false;
  const skip = (i: number) => {
    const end = match(space, text, i);
    loose ||= end > i;
    return end;
  };
  let i = skip(skip(0) + 1);
  while (text[i] !== "}") {
    if (text[i] === ",") i = skip(i + 1);
    const nameEnd = endOfString(text, i);
    const name = JSON.parse(text.slice(i, nameEnd)) as string;
    const start = skip(nameEnd) + 1;
    const valueStart = match(space, text, start);
    const valueEnd = endOfValue(text, valueStart);
    i = match(space, text, valueEnd);
    all.push({ name, value: text.slice(valueStart, valueEnd), padded: text.slice(start, i) });
  }
  skip(i + 1);
  return { all, loose };
}

/** Returns the end of the value that begins at i. */
function endOfValue(text: string, i: number): number {
  let depth = 0;
  do {
    const c = text[i];
    if (c === '"') {
      i = endOfString(text, i);
      continue;
    }
    if (c === "{" || c === "[") depth++;
    if (c === "}" || c === "]") depth--;
    if (depth === 0 && c !== "}" && c !== "]") return match(/[^,\]}\s]*/y, text, i);
    i++;
  } while (depth > 0);
  return i;
}

/** Returns the end of the string that begins at i. */
function endOfString(text: string, i: number): number {
  for (i++; text[i] !== '"'; i++) if (text[i] === "\\") i++;
  return i + 1;
}

/** Returns the end of a sticky expression's match at i. */
function match(expression: RegExp, text: string, i: number): number {
  expression.lastIndex = i;
  expression.test(text);
  return expression.lastIndex;
}
