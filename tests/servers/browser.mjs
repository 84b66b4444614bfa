#!/usr/bin/env node
// Plays the browser of somebody who agrees to everything: `browser.mjs URL`. Follows redirects, keeps cookies and sends
// every form as it is, until a page asks for nothing more. Prints that page.
let [url, options] = [process.argv[2], {}];
const jars = new Map();

for (let step = 0; step < 30; step += 1) {
  const { origin } = new URL(url);
  const jar = jars.get(origin) ?? jars.set(origin, new Map()).get(origin);
  const cookie = [...jar].map((pair) => pair.join("=")).join("; ");
  const answer = await fetch(url, { ...options, redirect: "manual", headers: { ...options.headers, cookie } });
  for (const line of answer.headers.getSetCookie()) {
    const [name, value] = line.split(";")[0].split("=");
    if (value) jar.set(name, value);
    else jar.delete(name);
  }
  const page = await answer.text();
  const location = answer.headers.get("location");
  const action = /<form[^>]* action="([^"]*)"/.exec(page);
  if (location) [url, options] = [new URL(location, url).href, {}];
  else if (action) {
    const inputs = page.matchAll(/<input[^>]* name="([^"]*)"(?:[^>]* value="([^"]*)")?/g);
    const body = new URLSearchParams([...inputs].map(([, name, value]) => [name, value ?? ""]));
    url = new URL(action[1].replaceAll("&amp;", "&"), url).href;
    options = { method: "POST", body, headers: { "content-type": "application/x-www-form-urlencoded" } };
  } else {
    console.log(page);
    process.exit(answer.ok ? 0 : 1);
  }
}
throw new Error("the pages have no end");
