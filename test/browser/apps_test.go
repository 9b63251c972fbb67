//go:build !race

package browser_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/test/hostrpc"
)

// appsVariable names a directory for third-party applications from npm. Without it, the
// tests in this file are skipped. make apps sets it and keeps the directory between
// runs.
const appsVariable = "AHP_TEST_APPS"

// appsManifest is the package.json of the applications.
const appsManifest = `{"private":true,"dependencies":{"vite":"7.1.12","vitest":"3.2.4","@vitest/ui":"3.2.4","playwright-core":"1.56.1","storybook":"10.6.0","@storybook/html-vite":"10.6.0"}}
`

// installApps installs the applications unless they are installed already, and returns
// their directory.
func installApps(t *testing.T) string {
	t.Helper()
	dir := appsDir(t)
	manifest := filepath.Join(dir, "package.json")
	if was, err := os.ReadFile(manifest); err == nil && string(was) == appsManifest {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
			return dir
		}
	}
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(manifest, []byte(appsManifest), 0o644))
	install := exec.CommandContext(t.Context(), "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	return dir
}

// appsDir returns the directory that appsVariable names, or skips the test.
func appsDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(appsVariable)
	if dir == "" {
		t.Skipf("%s names no directory for applications: they are not shown (make apps)", appsVariable)
	}
	return dir
}

// A project is a directory for an application, with a free port.
type project struct {
	t    *testing.T
	dir  string
	port string
}

func newProject(t *testing.T, files map[string]string) *project {
	t.Helper()
	apps := installApps(t)
	p := newFolder(t, files)
	must(t, os.Symlink(filepath.Join(apps, "node_modules"), filepath.Join(p.dir, "node_modules")))
	return p
}

// newFolder is newProject without npm packages.
func newFolder(t *testing.T, files map[string]string) *project {
	t.Helper()
	p := &project{t: t, dir: t.TempDir()}
	for name, text := range files {
		p.write(name, text)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, p.port, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	must(t, l.Close())
	return p
}

func (p *project) write(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.dir, name)
	must(p.t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(p.t, os.WriteFile(name, []byte(text), 0o644))
}

// run starts a Node.js program and waits until it answers at path. It returns the URL.
func (p *project) run(path string, args ...string) (url string) {
	p.t.Helper()
	return p.start(path, "node", args...)
}

// start starts a program and waits until it answers at path. It returns the URL. The
// program ends with the test.
func (p *project) start(path, name string, args ...string) (url string) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	program := exec.CommandContext(ctx, name, args...)
	program.Dir, program.Stdout, program.Stderr = p.dir, &out, &out
	program.Env = append(os.Environ(), "HOME="+p.dir)
	program.Cancel = func() error { return program.Process.Signal(os.Interrupt) } // an interrupt also ends the program's child processes
	program.WaitDelay = patience
	must(p.t, program.Start())
	p.t.Cleanup(func() {
		cancel()
		_ = program.Wait()
		if p.t.Failed() {
			p.t.Logf("%s", out.String())
		}
	})
	url = "http://localhost:" + p.port + path
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		response, err := http.Get(url)
		if err == nil {
			_ = response.Body.Close()
			return url
		}
		if time.Now().After(end) {
			p.t.Fatalf("the program %v does not answer: %v", args, err)
		}
	}
}

// shown opens a URL on the host's machine as a canvas in the console. It waits for a
// frame with an address that ends with suffix and in which condition holds, and returns it.
func shown(t *testing.T, url, suffix, condition string) *page {
	t.Helper()
	p, s := canvasPage(t, stackConfig{byURL: true, canvases: []hostrpc.Canvas{{ID: "app", URL: url}}})
	p.openCanvas(s, "app")
	return p.newFrame(suffix, "location.hostname.endsWith('.localhost') && "+condition)
}

// wantsOwn fails the test if a page has loaded something from this machine without the
// relay. A browser on a different machine could not do that.
func (p *page) wantsOwn() {
	p.t.Helper()
	if eval[bool](p, "[...performance.getEntriesByType('resource')].some((e) => ['localhost', '127.0.0.1'].includes(new URL(e.name).hostname))") {
		p.t.Error("the page loads a resource from localhost; want all through the relay")
	}
}

// TestAppVite edits a module while Vite's development server runs. The page shows the
// change without a reload.
func TestAppVite(t *testing.T) {
	t.Parallel()
	module := func(text string) string {
		return fmt.Sprintf("document.querySelector('#text').textContent = %q;\nimport.meta.hot.accept();\n", text)
	}
	p := newProject(t, map[string]string{
		"index.html": `<!doctype html><p id="text">none</p><script type="module" src="/main.js"></script>`, "main.js": module("one"),
	})
	url := p.run("/", "node_modules/vite/bin/vite.js", "--port", p.port, "--strictPort")
	f := shown(t, url, "/", "document.querySelector('#text')?.textContent === 'one'")
	eval[any](f, "window.mark = 1")
	for i := range 3 {
		text := fmt.Sprint("edited ", i)
		var written time.Time
		f.until(text, patience, func() bool {
			if time.Since(written) > time.Second { // a file watcher may report two quick edits as one
				p.write("main.js", module(text))
				written = time.Now()
			}
			return f.text("#text") == text
		})
		t.Logf("an edit was shown after %v", time.Since(written).Round(time.Millisecond))
	}
	if !eval[bool](f, "window.mark === 1") {
		t.Error("an edit reloads the page; want it in place")
	}
	f.wantsOwn()
}

// TestAppVitest opens Vitest's user interface, which runs a test and shows its result.
func TestAppVitest(t *testing.T) {
	t.Parallel()
	p := newProject(t, map[string]string{"sum.test.js": `import { test, expect } from "vitest";
test("adds up well", () => expect(1 + 2).toBe(3));`})
	url := p.run("/__vitest__/", "node_modules/vitest/vitest.mjs", "--ui", "--open=false", "--watch", "--api.port", p.port, "--api.host", "localhost", "--api.strictPort")
	f := shown(t, url, "/__vitest__/", "document.body.innerText.includes('sum.test.js')")
	f.until("that it has passed", patience, func() bool { return strings.Contains(eval[string](f, "document.body.innerText"), "1\nPass") })
	f.wantsOwn()
}

// TestAppStorybook shows a story in Storybook and then edits it. Storybook uses frames
// and a WebSocket.
func TestAppStorybook(t *testing.T) {
	t.Parallel()
	story := func(label string) string {
		return fmt.Sprintf("export default { title: 'Button', render: ({ label }) => `<button>${label}</button>` };\nexport const Primary = { args: { label: %q } };\n", label)
	}
	p := newProject(t, map[string]string{
		"package.json": `{"type":"module","private":true}`, "button.stories.js": story("Press me"),
		".storybook/main.js": `export default { stories: ["../*.stories.js"], framework: "@storybook/html-vite", core: { disableTelemetry: true, disableWhatsNewNotifications: true } };`,
	})
	p.run("/", "node_modules/storybook/dist/bin/dispatcher.js", "dev", "--ci", "--no-open", "--disable-telemetry", "--host", "localhost", "--port", p.port, "--exact-port")
	url := "http://localhost:" + p.port + "/?path=/story/button--primary"
	f := shown(t, url, "button--primary", "document.body.innerText.includes('Primary')")
	f.until("the story", patience, func() bool { return strings.Contains(eval[string](f, snapshotText), "Press me") })
	var written time.Time
	f.until("the story as it is now", patience, func() bool {
		if time.Since(written) > 2*time.Second {
			p.write("button.stories.js", story("Press me again"))
			written = time.Now()
		}
		return strings.Contains(eval[string](f, snapshotText), "Press me again")
	})
	f.wantsOwn()
}

// notebook has one cell, which the test runs.
const notebook = `{"nbformat":4,"nbformat_minor":4,"metadata":{"kernelspec":{"name":"python3","display_name":"Python 3","language":"python"}},"cells":[
	{"cell_type":"code","metadata":{},"execution_count":null,"outputs":[],"source":"print('six times seven is', 6 * 7)"}]}`

// TestAppJupyter runs a notebook in Jupyter and saves it. The kernel answers over a
// WebSocket. To save, Jupyter needs a cookie and a header with the same value.
func TestAppJupyter(t *testing.T) {
	t.Parallel()
	appsDir(t)
	jupyter, err := exec.LookPath("jupyter-notebook")
	if err != nil {
		t.Skip("no jupyter-notebook on the PATH: it is not shown (Debian: jupyter-notebook, python3-ipykernel)")
	}
	p := newFolder(t, map[string]string{"sums.ipynb": notebook})
	url := p.start("/notebooks/sums.ipynb", jupyter, "--no-browser", "--allow-root", "--ip=localhost", "--port="+p.port, "--port-retries=0",
		"--NotebookApp.token=", "--NotebookApp.password=", "--notebook-dir=.")
	f := shown(t, url, "/notebooks/sums.ipynb", "window.Jupyter?.notebook?.kernel?.is_connected() === true")
	eval[any](f, "void Jupyter.notebook.execute_all_cells()")
	f.wants(".output_area", "six times seven is 42")
	eval[any](f, "void Jupyter.notebook.save_notebook()")
	f.until("the notebook to be saved", patience, func() bool {
		text, err := os.ReadFile(filepath.Join(p.dir, "sums.ipynb"))
		return err == nil && strings.Contains(string(text), "six times seven is 42")
	})
	f.wantsOwn()
}

// TestAppTraceViewer shows a trace in Playwright's trace viewer, which uses a service
// worker and frames.
func TestAppTraceViewer(t *testing.T) {
	t.Parallel()
	p := newProject(t, map[string]string{"record.js": `const { chromium } = require("playwright-core");
(async () => {
  const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox"] });
  const context = await browser.newContext();
  await context.tracing.start({ snapshots: true, screenshots: true });
  const page = await context.newPage();
  await page.setContent("<h1>Recorded heading</h1><button>Press me</button>");
  await page.click("button");
  await context.tracing.stop({ path: "trace.zip" });
  await browser.close();
})();`})
	browser, err := exec.LookPath("chromium")
	must(t, err)
	record := exec.CommandContext(t.Context(), "node", "record.js", browser)
	record.Dir = p.dir
	if out, err := record.CombinedOutput(); err != nil {
		t.Fatalf("record: %v\n%s", err, out)
	}
	p.run("/", "node_modules/playwright-core/cli.js", "show-trace", "--host", "localhost", "--port", p.port, "trace.zip")
	trace := "http://localhost:" + p.port + "/trace/index.html?trace=" + filepath.Join(p.dir, "trace.zip")
	f := shown(t, trace, "trace.zip", "document.body.innerText.includes('Click')")
	f.until("the recorded page", patience, func() bool { return strings.Contains(eval[string](f, snapshotText), "Recorded heading") })
	f.wantsOwn()
}

// snapshotText is a script that returns the text in all frames of a page.
const snapshotText = `[...document.querySelectorAll('iframe')].map((f) => { try { return f.contentDocument.body.innerText; } catch { return ''; } }).join(' ')`
