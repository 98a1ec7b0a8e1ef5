// Drives a running product in headless Chromium: node run.mjs BASE_URL USERS
//
// USERS is a file (or JSON itself) with the users that may sign in: a list, or
// an object with such a list under `users`, each {name, password, role, team}.
// Nothing is mocked: what is asserted is what a person would see.
import { readFileSync } from "node:fs";
import { AxeBuilder } from "@axe-core/playwright";
import { chromium } from "playwright-core";

const [base, usersArgument] = process.argv.slice(2);
if (!base || !usersArgument) {
  console.error("usage: node run.mjs BASE_URL USERS_JSON");
  process.exit(2);
}
const given = JSON.parse(usersArgument.trim().startsWith("{") || usersArgument.trim().startsWith("[") ? usersArgument : readFileSync(usersArgument, "utf8"));
const users = Array.isArray(given) ? given : given.users;
const find = (test, words) => {
  const user = users.find(test);
  if (!user) throw new Error(`USERS has no ${words}`);
  return user;
};
const admin = find((user) => user.role === "admin", "administrator");
// Work belongs to teams without teams below: the seeded root, org, has none of its own.
const ROOT = "org";
const member = find((user) => user.role === "member" && user.team && user.team !== ROOT, "member of a team");
const owner = find((user) => user.role === "owner" && user.team === member.team, `owner of ${member.team}`);
const other = find((user) => user.team && ![ROOT, member.team].includes(user.team), "user of another team");

/** Longest wait for a state: a job starts within seconds, and a busy machine is slow. */
const STATE_MS = 90_000;
const DESKTOP = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

let passed = 0;
let failed = 0;
const complaints = [];
/** What the check that goes on expects to be refused with, and whether it was. */
let refusal = { status: undefined, seen: false };
/** Checks a claim. Of the answers only those with the status `refused`, if one is named, may refuse. */
async function check(claim, body, { refused } = {}) {
  const started = Date.now();
  refusal = { status: refused, seen: false };
  const before = complaints.length;
  try {
    await body();
    assert(refused === undefined || refusal.seen, `nothing was refused with status ${refused}`);
    assert(complaints.length === before, complaints.slice(before).join("\n"));
    passed += 1;
    console.log(`ok    ${claim} (${Date.now() - started} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${claim}\n      ${String(error?.message ?? error).split("\n").slice(0, 12).join("\n      ")}`);
  }
}
function assert(fact, words) {
  if (!fact) throw new Error(words);
}

async function open(options = {}) {
  const context = await browser.newContext({ baseURL: base, viewport: DESKTOP, ...options });
  context.setDefaultTimeout(20_000);
  const page = await context.newPage();
  page.on("response", (answer) => {
    if (answer.status() < 400) return;
    if (answer.status() === refusal.status) refusal.seen = true;
    else complaints.push(`${page.url()}: ${answer.request().method()} ${answer.url()} was answered ${answer.status()}`);
  });
  // The browser tells of a refusal once more, in words of its own.
  const told = /^Failed to load resource: the server responded with a status of/;
  page.on("console", (message) => {
    if (message.type() === "error" && !told.test(message.text())) complaints.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error.message}`));
  return page;
}

async function signIn(page, user) {
  await page.goto("/signin");
  await page.getByLabel("Name", { exact: true }).fill(user.name);
  await page.getByLabel("Password").fill(user.password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Main" }).waitFor({ state: "attached" });
}

async function submit(page, { name, command, count, atMost }) {
  await page.goto(`/submit?team=${member.team}`);
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Command").fill(command);
  await page.getByLabel("GPUs per worker").fill("1");
  if (count) await page.getByLabel("Run it so many times").fill(count);
  if (atMost) await page.getByLabel("At most at once").fill(atMost);
  await page.getByRole("button", { name: /^Submit/ }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}/);
  return page.url();
}

/** Waits until the page says that the job is in a state, without loading the page again. */
async function reaches(page, state) {
  await page.waitForFunction((wanted) => document.querySelector("[data-state]")?.dataset.state === wanted, state, { timeout: STATE_MS, polling: 200 });
}

const page = await open();
await check("a wrong password is refused in words and keeps the name", async () => {
  await page.goto("/signin");
  await page.getByLabel("Name", { exact: true }).fill(member.name);
  await page.getByLabel("Password").fill("not the password");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  assert((await page.getByLabel("Name", { exact: true }).inputValue()) === member.name, "the name was lost");
}, { refused: 401 });
await check("a page asked for without a session leads to the sign-in and then to that page", async () => {
  await page.goto("/fleet");
  assert(new URL(page.url()).pathname === "/signin", `at ${page.url()}`);
  await page.getByLabel("Name", { exact: true }).fill(member.name);
  await page.getByLabel("Password").fill(member.password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL(/\/fleet$/);
});
await check("the fleet shows nodes and devices, as cells and as a table", async () => {
  await page.goto("/fleet");
  assert((await page.locator(".bed").count()) >= 1, "no node");
  assert((await page.locator(".devs title").count()) >= 1, "no device");
  await page.locator("summary", { hasText: "Show as a table" }).first().click();
  await page.locator("details[open] table").first().waitFor();
  const cut = await page.locator("details[open] .box").first().evaluate((box) => box.scrollWidth - box.clientWidth);
  assert(cut <= 0, `the table is cut by ${cut} px`);
});
let nodeAddress = "/fleet";
await check("a node's page shows its devices", async () => {
  await page.goto("/fleet");
  await page.locator(".bed a").first().click();
  await page.waitForURL(/\/nodes\//);
  nodeAddress = new URL(page.url()).pathname;
  assert((await page.getByText(/^GPU-/).count()) >= 1, "no device with a UUID");
});

let jobAddress = "/jobs";
const jobName = `seen-${Date.now().toString(36)}`;
await check("a job submitted from the form goes from queued to succeeded without a reload, its log as it is written", async () => {
  await page.goto(`/submit?team=${member.team}`);
  await submit(page, { name: jobName, command: "sh -c 'for i in 1 2 3 4 5 6; do echo \"line $i <b>x</b>\"; sleep 1; done'" });
  jobAddress = new URL(page.url()).pathname;
  await page.evaluate(() => {
    window.sameDocument = true;
    window.seen = [document.querySelector("[data-state]").dataset.state];
    new MutationObserver(() => {
      const state = document.querySelector("[data-state]")?.dataset.state;
      if (state && window.seen.at(-1) !== state) window.seen.push(state);
    }).observe(document.querySelector("main"), { subtree: true, childList: true, attributes: true });
  });
  await reaches(page, "running");
  await page.locator("#log li", { hasText: "line 1" }).waitFor({ timeout: STATE_MS });
  const state = await page.locator("[data-state]").getAttribute("data-state");
  assert(state === "running", `the first line came only when the job was ${state}`);
  await reaches(page, "succeeded");
  await page.locator("#log li", { hasText: "line 6 <b>x</b>" }).waitFor();
  assert(await page.evaluate(() => window.sameDocument === true), "the page was loaded again");
  const seen = await page.evaluate(() => window.seen);
  assert(seen.includes("running") && seen.at(-1) === "succeeded", `seen: ${seen}`);
});
await check("the job's page shows its timeline, attempt, placement and cost", async () => {
  await page.goto(jobAddress);
  assert((await page.locator("svg.tl rect").count()) >= 2, "no spans in the timeline");
  await page.getByRole("heading", { name: "What happened" }).waitFor();
  assert((await page.locator(".events li").count()) >= 3, "fewer than three events");
  await page.locator(".attempts").getByText("Attempt 1", { exact: true }).waitFor();
  const cost = await page.locator(".ledger .sum td").first().innerText();
  assert(/[¥€$][0-9.,]+/.test(cost), `the cost reads ${cost}`);
  assert((await page.locator("#log li").count()) === 6, "the log has not six lines");
});
await check("the list of jobs shows it and can be filtered", async () => {
  await page.goto("/jobs");
  await page.getByRole("link", { name: jobName }).waitFor();
  await page.getByLabel("State").selectOption("succeeded");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.waitForURL(/state=succeeded/);
  await page.getByRole("link", { name: jobName }).waitFor();
  assert((await page.locator("tbody .st.bad").count()) === 0, "the filter leaves failed jobs");
});
let failedAddress = "/jobs";
await check("a command that is not there fails in words", async () => {
  await submit(page, { name: `missing-${Date.now().toString(36)}`, command: "no-such-program --really" });
  failedAddress = new URL(page.url()).pathname;
  await reaches(page, "failed");
  const told = await page.locator("#ending").innerText();
  assert(/The command was not found/.test(told) && !/as it is written/.test(told), told);
  assert(!/so far/i.test(await page.locator("main").innerText()), "its cost is told as if it went on");
});
await check("an exit code is told", async () => {
  await submit(page, { name: `exit-${Date.now().toString(36)}`, command: "sh -c 'echo about to fail; exit 3'" });
  await reaches(page, "failed");
  assert(/exit code 3/.test(await page.locator("#ending").innerText()), await page.locator("#ending").innerText());
});
await check("a running job can be cancelled from its page", async () => {
  await submit(page, { name: `long-${Date.now().toString(36)}`, command: "sleep 600" });
  await reaches(page, "running");
  await page.getByRole("button", { name: "Cancel job…" }).click();
  await page.getByRole("button", { name: "Cancel the job" }).click();
  await reaches(page, "cancelled");
});
let waitingAddress = "/jobs";
await check("a job that is not to start yet says so while it is typed, waits, and stands in the queue", async () => {
  const name = `later-${Date.now().toString(36)}`;
  await page.goto(`/submit?team=${member.team}`);
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Command").fill("true");
  await page.getByLabel("Pool", { exact: true }).selectOption({ index: 1 });
  await page.getByLabel("Workers", { exact: true }).fill("2");
  await page.getByLabel("Least workers").fill("1");
  await page.getByLabel("Not before").fill("2100-01-01T00:00");
  await page.locator("#dry-run", { hasText: "Its start time has not come." }).waitFor();
  await page.getByRole("button", { name: /^Submit, and wait/ }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}/);
  waitingAddress = new URL(page.url()).pathname;
  await page.getByText("1 to 2: its size may change while it runs").waitFor();
  await page.getByRole("heading", { name: "What it waited for" }).waitFor({ timeout: STATE_MS });
  await page.getByText("Before its earliest start", { exact: false }).first().waitFor();
  const pool = await page.locator("dt", { hasText: /^Pools$/ }).locator("+ dd").innerText();
  await page.goto(`/queue?pool=${pool}`);
  await page.getByRole("link", { name }).waitFor();
});
let arrayAddress = "/jobs";
await check("an array submitted from the form shows its elements, unfolds in the list and is cancelled in part", async () => {
  await submit(page, { name: `sweep-${Date.now().toString(36)}`, command: "sleep 600", count: "12", atMost: "1" });
  arrayAddress = new URL(page.url()).pathname;
  await reaches(page, "running");
  const lede = () => page.locator(".lede").innerText();
  assert(/0 of 12/.test(await lede()) && /At most 1/.test(await lede()), await lede());
  assert((await page.locator("svg.grid-of path").count()) === 2, "one element runs, the others wait");
  await page.getByLabel("Elements", { exact: true }).and(page.locator("input")).fill("8-11");
  await page.getByRole("button", { name: "Cancel these" }).click();
  await page.waitForFunction(() => /4 of 12/.test(document.querySelector(".lede")?.textContent), undefined, { timeout: STATE_MS });
  await page.goto(`${arrayAddress}?state=cancelled`);
  assert((await page.locator("tbody tr").count()) === 4, "four are listed as cancelled");
  await page.locator("tbody a.name").first().click();
  await page.waitForURL(/\.8$/);
  await page.goto("/jobs");
  const row = page.locator("tr").filter({ has: page.locator(`a.name[href="${arrayAddress}"]`) });
  await row.locator("a[aria-expanded=false]").click();
  await page.locator("tr.unfolded").waitFor();
  assert(/Cancelled\s*4/.test(await page.locator("tr.unfolded").innerText()), await page.locator("tr.unfolded").innerText());
});
await check("a wrong value keeps what was typed and says what is wrong beside its field", async () => {
  await page.goto(`/submit?team=${member.team}`);
  await page.getByLabel("Name", { exact: true }).fill("too-many");
  await page.getByLabel("Command").fill("true");
  await page.getByLabel("GPUs per worker").fill("1000000000000");
  await page.getByRole("button", { name: /^Submit/ }).click();
  await page.locator("#gpus[aria-invalid=true]").waitFor();
  assert((await page.getByLabel("GPUs per worker").inputValue()) === "1000000000000", "the value was lost");
  assert(/GPUs per worker: /.test(await page.locator("#gpus-e").innerText()), await page.locator("#gpus-e").innerText());
}, { refused: 422 });
await check("a try that gets no answer says so in place of the old one", async () => {
  // A page that nobody listens to: the browser complains of what is refused here on purpose.
  const deaf = await page.context().newPage();
  await deaf.goto(`/submit?team=${member.team}`);
  await deaf.getByLabel("Name", { exact: true }).fill("unanswered");
  await deaf.getByLabel("Command").fill("true");
  await deaf.locator("#dry-run", { hasText: "Displaces" }).waitFor();
  for (const fails of [(route) => route.abort(), (route) => route.fulfill({ status: 503, body: "" })]) {
    await deaf.route("**/submit/dry-run", fails);
    await deaf.getByLabel("Workers", { exact: true }).fill("2");
    await deaf.locator("#dry-run", { hasText: "It could not be tried" }).waitFor();
    assert(!(await deaf.locator("#dry-run").innerText()).includes("Displaces"), "the old answer stands");
    assert((await deaf.locator("#submit-words").innerText()) === "Submit the job", "the button promises what was not tried");
    await deaf.unroute("**/submit/dry-run");
    await deaf.getByLabel("Workers", { exact: true }).fill("1");
    await deaf.locator("#dry-run", { hasText: "Displaces" }).waitFor();
  }
  // A server that never answers: what stands there is marked as of what was typed before.
  await deaf.route("**/submit/dry-run", () => {});
  await deaf.getByLabel("Workers", { exact: true }).fill("2");
  await deaf.locator("#dry-run[aria-busy]", { hasText: "No answer yet." }).waitFor();
  assert((await deaf.locator("#submit-words").innerText()) === "Submit the job", "the button promises what was not tried");
  await deaf.unroute("**/submit/dry-run");
  await deaf.getByLabel("Workers", { exact: true }).fill("1");
  await deaf.locator("#dry-run:not([aria-busy])", { hasText: "Displaces" }).waitFor();
  await deaf.close();
});
await check("the team's page shows quota, spend and members", async () => {
  await page.goto(`/teams/${member.team}`);
  assert((await page.locator(".plots, .qbar").count()) >= 1, "no quota");
  await page.getByRole("row", { name: `${owner.name} owner` }).waitFor();
  await page.getByRole("heading", { name: /^Spent in/ }).waitFor();
});
await check("another team's page is not there", async () => {
  const answer = await page.goto(`/teams/${other.team}`);
  assert(answer.status() === 404, `status ${answer.status()}`);
  assert((await page.locator("h1").count()) === 1, "no page of its own");
}, { refused: 404 });
await check("a member sees its team mates among the users and no form to add one", async () => {
  await page.goto("/users");
  await page.getByRole("row", { name: new RegExp(owner.name) }).waitFor();
  assert((await page.getByRole("row", { name: new RegExp(other.name) }).count()) === 0, `${other.name} is seen`);
  assert((await page.getByRole("button", { name: "Add the user" }).count()) === 0, "a form to add users");
});
await check("the theme is kept by the server", async () => {
  await page.goto("/jobs");
  const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.getByRole("button", { name: "Switch between light and dark" }).click();
  await page.waitForURL(/\/jobs/);
  assert(await page.evaluate(() => ["light", "dark"].includes(document.documentElement.dataset.theme)), "no theme on the page");
  assert((await page.evaluate(() => getComputedStyle(document.body).backgroundColor)) !== before, "the colours are the same");
});

const adminPage = await open();
await check("an administrator adds, disables and enables a user", async () => {
  await signIn(adminPage, admin);
  await adminPage.goto("/users");
  const name = `guest-${Date.now().toString(36)}`;
  await adminPage.getByLabel("Name", { exact: true }).fill(name);
  await adminPage.getByLabel("Password").fill("a long enough password 7");
  await adminPage.getByRole("button", { name: "Add the user" }).click();
  await adminPage.getByRole("button", { name: `Disable ${name}` }).click();
  await adminPage.getByRole("button", { name: `Enable ${name}` }).click();
  await adminPage.getByRole("button", { name: `Disable ${name}` }).waitFor();
});
await check("an operator's page of a node cordons and uncordons it", async () => {
  await adminPage.goto(nodeAddress);
  await adminPage.getByRole("button", { name: "Cordon", exact: true }).click();
  await adminPage.getByRole("button", { name: "Uncordon" }).click();
  await adminPage.getByRole("button", { name: "Cordon", exact: true }).waitFor();
});

/** Tries a form of policies, without a reload, and waits for what came of it. */
async function tryIt(page, told = "Nothing was saved.") {
  await page.evaluate(() => { window.sameDocument = true; });
  await page.getByRole("button", { name: "Try on the live world", exact: true }).click();
  await page.locator("#effect", { hasText: told }).waitFor();
  assert(await page.evaluate(() => window.sameDocument === true), "the page was loaded again");
}
await check("quotas are edited in one table, tried on the live world, saved and gone back from", async () => {
  await adminPage.goto("/quotas");
  const cell = adminPage.getByLabel(`${member.team} in h100: Guaranteed`);
  const before = await cell.inputValue();
  await cell.fill("many");
  await adminPage.getByRole("button", { name: "Try on the live world", exact: true }).click();
  await adminPage.locator(`[id="${member.team}/h100/guaranteed-e"]`).waitFor();
  assert((await cell.inputValue()) === "many", "what was typed is lost");
  await cell.fill("1.5");
  await tryIt(adminPage);
  await adminPage.getByText(`was ${before}`).first().waitFor();
  await adminPage.getByLabel("Why").fill("a check of the pages");
  await adminPage.getByRole("button", { name: "Save", exact: true }).click();
  await adminPage.getByText("The quotas were saved.").waitFor();
  assert((await cell.inputValue()) === "1.5", "it was not saved");
  await adminPage.getByText("Why: a check of the pages").first().waitFor();
  await adminPage.getByRole("link", { name: `Quota ${member.team}/h100` }).first().click();
  await adminPage.waitForURL(/policy-versions/);
  await adminPage.getByRole("button", { name: /^Go back to/ }).first().click();
  await adminPage.getByText("It is again as it was.").waitFor();
  await adminPage.goto("/quotas");
  assert((await cell.inputValue()) === before, "it was not gone back to");
});
await check("a pool's policy is changed by its form, and tried before it is saved", async () => {
  await adminPage.goto("/pools/h100");
  await adminPage.getByLabel("Time slices of a device").fill("0");
  await adminPage.getByRole("button", { name: "Try on the live world", exact: true }).click();
  await adminPage.locator('[id="time_slices-e"]').waitFor();
  await adminPage.getByLabel("Time slices of a device").fill("8");
  await adminPage.getByLabel("Running work may move").check();
  await tryIt(adminPage);
  await adminPage.getByRole("button", { name: "Save", exact: true }).click();
  await adminPage.getByText("The policy was saved.").waitFor();
  assert(await adminPage.getByLabel("Running work may move").isChecked(), "it was not saved");
});
await check("a try of policies that gets no answer says so", async () => {
  const deaf = await adminPage.context().newPage();
  await deaf.goto("/pools/h100");
  await deaf.route("**/pools/h100", (route) => (route.request().method() === "POST" ? route.abort() : route.continue()));
  await deaf.getByRole("button", { name: "Try on the live world", exact: true }).click();
  await deaf.locator("#effect", { hasText: "It could not be tried" }).waitFor();
  await deaf.close();
});
await check("what is wider than a phone shows on which side it goes on", async () => {
  await adminPage.setViewportSize(PHONE);
  await adminPage.goto("/quotas");
  const tabs = adminPage.locator(".tabs");
  await adminPage.waitForFunction(() => document.querySelector(".tabs")?.dataset.more === "right");
  await tabs.evaluate((element) => { element.scrollLeft = element.scrollWidth; });
  await adminPage.waitForFunction(() => document.querySelector(".tabs")?.dataset.more === "left");
  await adminPage.setViewportSize(DESKTOP);
  await adminPage.waitForFunction(() => !document.querySelector(".tabs")?.dataset.more);
});
await check("a class is made, changed and removed", async () => {
  await adminPage.goto("/classes");
  await adminPage.getByLabel("Name", { exact: true }).fill("spare-time");
  await adminPage.getByLabel("Priority", { exact: true }).fill("-99");
  await adminPage.getByRole("button", { name: "Make the class" }).click();
  await adminPage.getByLabel("Priority of spare-time").fill("-98");
  await adminPage.getByRole("button", { name: "Save spare-time" }).click();
  await adminPage.getByText("The class was saved.").waitFor();
  await adminPage.getByRole("button", { name: "Remove spare-time" }).click();
  await adminPage.getByText("The class was removed.").waitFor();
});
await check("GPUs are booked, and what is in the way is marked and told in words", async () => {
  await adminPage.goto("/pools/h100/bookings");
  await adminPage.getByLabel("Name", { exact: true }).fill("demo");
  await adminPage.getByLabel("Team").selectOption(member.team);
  await adminPage.getByLabel("GPUs").fill("60");
  const day = new Date(Date.now() + 2 * 24 * 3600 * 1000).toISOString().slice(0, 10);
  await adminPage.getByLabel("From").fill(`${day}T09:00`);
  await adminPage.getByLabel("To", { exact: true }).fill(`${day}T17:00`);
  await tryIt(adminPage);
  await adminPage.getByRole("button", { name: "Save", exact: true }).click();
  await adminPage.getByText("It was booked.").waitFor();
  await adminPage.locator(".calendar td.w3", { hasText: "demo" }).first().waitFor();
  await adminPage.getByText(/h100 has .* less than is promised/).first().waitFor();
});
await check("a weekly window is tried as if it were open, and stands in the week", async () => {
  await adminPage.goto("/pools/h100/windows");
  await adminPage.getByLabel("Name", { exact: true }).fill("nights");
  for (const day of ["Mon", "Sun"]) await adminPage.getByLabel(day, { exact: true }).check();
  await adminPage.getByLabel("From").fill("20:00");
  await adminPage.getByLabel("To", { exact: true }).fill("08:00");
  await adminPage.getByLabel(`${member.team} in h100: Guaranteed`).fill("1");
  await tryIt(adminPage);
  await adminPage.getByRole("button", { name: "Save", exact: true }).click();
  await adminPage.getByText("The window was made.").waitFor();
  assert((await adminPage.locator(".hours td a", { hasText: "nights" }).count()) >= 3, "it is not in the week");
});
await check("who may not change policies sees those of its own teams and no button", async () => {
  for (const address of ["/quotas", "/pools/h100", "/classes", "/pools/h100/bookings", "/pools/h100/windows", "/policy-versions"]) {
    await page.goto(address);
    const buttons = await page.locator("main").getByRole("button").count();
    assert(buttons === 0, `${buttons} buttons on ${address}`);
    assert(!(await page.locator("main").innerText()).includes(other.team), `${address} tells of ${other.team}`);
  }
});

const plain = await open({ javaScriptEnabled: false });
await check("signing in and submitting work without scripts", async () => {
  await signIn(plain, owner);
  await submit(plain, { name: `plain-${Date.now().toString(36)}`, command: "true" });
  assert((await plain.locator("[data-state]").count()) === 1, "no state on the page");
});

const NOWHERE = "/nowhere";
const policies = ["/quotas", "/pools/h100", "/classes", "/pools/h100/bookings", "/pools/h100/windows", "/policy-versions"];
// Every page, as an administrator sees it, and what a member sees of teams and of a wrong form.
const addresses = ["/fleet", nodeAddress, "/jobs", "/jobs?user=nobody", jobAddress, failedAddress, waitingAddress, arrayAddress, "/queue", `/submit?team=${member.team}`, `/teams/${ROOT}`, `/teams/${member.team}`, "/teams", "/users", ...policies, "/pools/h100/bookings?edit=demo", "/pools/h100/windows?edit=nights", NOWHERE];
const visitor = await open();
await signIn(visitor, member);
/** A folder that gets a picture of each page, when it is named. */
const pictures = process.env.PICTURES;
for (const theme of ["light", "dark"]) {
  for (const context of [adminPage.context(), visitor.context()]) await context.addCookies([{ name: "theme", value: theme, url: base }]);
  const outside = await open({ colorScheme: theme });
  const visits = [[outside, "/signin", "outside"], ...addresses.map((address) => [adminPage, address, "admin"]), [visitor, "/teams", "member"], [visitor, `/teams/${member.team}`, "member"], ...policies.map((address) => [visitor, address, "member"])];
  for (const size of [DESKTOP, PHONE]) {
    for (const [reader, address, who] of visits) {
      await check(`axe finds nothing on ${address} at ${size.width} px, ${theme}, ${who}, and nothing scrolls sideways`, async () => {
        await reader.setViewportSize(size);
        await reader.goto(address);
        if (pictures) await reader.screenshot({ path: `${pictures}/${size.width}-${theme}-${who}${address.replace(/[^a-z0-9]+/gi, "-")}.png`, fullPage: true });
        const over = await reader.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert(over <= 0, `${over} px too wide`);
        const { violations } = await new AxeBuilder({ page: reader }).analyze();
        assert(violations.length === 0, violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 160)).join(" | ")}`).join("\n"));
      }, { refused: address === NOWHERE ? 404 : undefined });
    }
  }
}
await check("signing out ends the session", async () => {
  await page.setViewportSize(DESKTOP);
  await page.goto("/jobs");
  await page.getByRole("button", { name: `Account of ${member.name}` }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL(/\/signin/);
  await page.goto("/jobs");
  assert(new URL(page.url()).pathname === "/signin", `at ${page.url()}`);
});
await check("no page complained: no script error, nothing that the content policy refused", async () => {
  assert(complaints.length === 0, complaints.slice(0, 8).join("\n"));
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
