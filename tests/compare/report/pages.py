#!/usr/bin/env python3
"""Has headless Chromium draw and print a page: no error in the console, drawn data equal to results.json's, nothing
wider than the window.

    pages.py TEST_CLI      exit status 77: there is no Chromium, or the build has no Chart.js
"""
import html as html_text
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Opens every section as printing does, then leaves what Chart.js draws in the document.
PROBE = """
<script>
dispatchEvent(new Event('beforeprint'));
dispatchEvent(new Event('afterprint'));
document.querySelectorAll('details').forEach((one) => { one.open = true; });
setTimeout(() => {
  const drawn = {};
  document.querySelectorAll('figure').forEach((figure) => {
    const chart = Chart.getChart(figure.querySelector('canvas'));
    drawn[figure.dataset.chart] = chart && {
      width: chart.width, height: chart.height,
      series: Object.fromEntries(chart.data.datasets.map((set) => [set.label, set.data])),
    };
  });
  parent.postMessage({
    drawn, results: JSON.parse(document.getElementById('data').textContent), width: innerWidth,
    needed: document.documentElement.scrollWidth, background: getComputedStyle(document.body).backgroundColor,
    fold: Math.max(...[...document.querySelectorAll('.first canvas')].map((one) => one.getBoundingClientRect().bottom)),
  }, '*');
}, 100);
</script>
"""

# A frame, as a window of Chromium is never narrower than 500 pixels.
FRAME = """<!doctype html><style>:root { color-scheme: light dark } body { margin: 0 }</style>
<iframe src="PAGE" style="width: WIDTHpx; height: 900px; border: 0"></iframe><pre id="told"></pre>
<script>
addEventListener('message', (event) => { document.getElementById('told').textContent = JSON.stringify(event.data); });
</script>
"""


def check(holds, what):
    if not holds:
        sys.exit(f"pages.py: {what}")


def chromium(folder, *arguments):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
               f"--user-data-dir={folder}/profile", "--virtual-time-budget=3000", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    check(not said, f"the console says: {said}")
    return ran.stdout


def cannot_run(folder):
    """Why Chromium does not draw an empty page here, as in some containers; empty where it does."""
    try:
        chromium(folder, "--dump-dom", "about:blank")
    except (subprocess.SubprocessError, OSError) as error:
        return f"Chromium does not run here: {type(error).__name__}"
    return ""


def check_data(told):
    drawn, runs = told["drawn"], [run for run in told["results"]["runs"] if run["ok"]]
    for name, chart in drawn.items():
        check(chart and chart["width"] > 200 and chart["height"] > 100, f"{name} is not drawn: {chart}")

    def series(name, chart):
        return [(point["x"], point["y"]) for point in drawn[chart]["series"][name]]

    for mode in ("averaging", "dp", "ddp"):
        own = [run for run in runs if run["mode"] == mode]
        check([x for x, _ in series(mode, "speedups")] == [[run["speedup_low"], run["speedup_high"]] for run in own],
              f"speed-ups of {mode}: {series(mode, 'speedups')}")
        medians = [(run["devices"], sorted(run["epoch_s"])[len(run["epoch_s"]) // 2]) for run in own]
        check(series(mode, "epochs") == medians, f"epochs of {mode}: {series(mode, 'epochs')}")
        lost = {part: us for part, us in own[0]["losses_us"].items() if us is not None and part != "ideal"}
        bars = sorted(us if us else low for (low, us), _ in series(f"{mode} 2", "losses"))
        check(len(bars) == len(lost) and all(abs(bar - us) < 1e-3 for bar, us in zip(bars, sorted(lost.values()))),
              f"losses of {mode}: {series(f'{mode} 2', 'losses')}, {lost}")
    timed = [sum(run["step_us"].values()) for run in runs]
    ends = [0] * len(timed)
    for points in drawn["parts"]["series"].values():
        for point in points:
            ends[int(point["y"])] = max(ends[int(point["y"])], point["x"][1])
    check(all(abs(a - b) < 1e-6 * a for a, b in zip(timed, ends, strict=True)), f"parts: {ends}, {timed}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        if why := cannot_run(folder):
            print(f"skipped: {why}")
            return 77
        page = f"{folder}/page.html"
        subprocess.run([sys.argv[1], "[.page]"], env={**os.environ, "DUET_PAGE": page}, check=True, stdout=subprocess.DEVNULL)
        with open(page, encoding="utf-8") as file:
            html = file.read()
        if "<figure" not in html:
            print("skipped: built without Chart.js (Debian's libjs-chart.js)")
            return 77
        with open(f"{folder}/probed.html", "w", encoding="utf-8") as file:
            file.write(html.replace("</body>", PROBE + "</body>"))
        backgrounds = set()
        for width in (1400, 800, 400):
            with open(f"{folder}/frame.html", "w", encoding="utf-8") as file:
                file.write(FRAME.replace("PAGE", "probed.html").replace("WIDTH", str(width)))
            for scheme in (0, 1):  # dark, light
                dom = chromium(folder, "--window-size=1500,1000", f"--blink-settings=preferredColorScheme={scheme}",
                               "--dump-dom", f"file://{folder}/frame.html")
                found = re.search(r'<pre id="told">(.+?)</pre>', dom, re.S)
                check(found, f"nothing was drawn at {width}")
                told = json.loads(html_text.unescape(found[1]))
                check(told["width"] == width, f"the window is {told['width']} wide, not {width}")
                check(told["needed"] <= width, f"at {width} the page is {told['needed']} wide")
                check(width < 1400 or told["fold"] <= 900, f"the pictures beside the verdict end at {told['fold']}")
                backgrounds.add((scheme, told["background"]))
                check_data(told)
        check(len(backgrounds) == 2 and len({colour for _, colour in backgrounds}) == 2, f"backgrounds: {backgrounds}")
        chromium(folder, f"--print-to-pdf={folder}/page.pdf", "--no-pdf-header-footer", f"file://{page}")
        with open(f"{folder}/page.pdf", "rb") as file:
            pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", file.read()))
        check(1 <= pages <= 4, f"{pages} printed pages, expected 1 to 4")
    return 0


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    print("skipped: no chromium")
    sys.exit(77)
sys.exit(main())
