//go:build !race

package browser_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"ahprelay/hostagent"
	"ahprelay/test/procs"
)

// share runs a subcommand of host-agent about links, and returns its output.
func (s *sealedSite) share(args ...string) string {
	s.t.Helper()
	args = append(args, "--relay", s.url, "--token-file", s.file("token-"+hostName), "--control", s.control.Path)
	out, err := exec.CommandContext(s.t.Context(), filepath.Join(s.bench.Programs, procs.AgentProgram), args...).Output()
	if err != nil {
		s.t.Fatalf("host-agent %v: %v %s; want success", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestSealedLinkOnAPhone opens a link to a sealed host's session on a phone, without a
// sign-in, in a console that the relay does not serve. The page shows this session and
// no other, also after a reload, until the link is revoked. The relay's own list of
// links does not name the session.
func TestSealedLinkOnAPhone(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startSealed(t)
	link := s.share("share", "demo:/login", "--no-qr")
	if !strings.HasPrefix(link, s.console+"/#") {
		t.Fatalf("the link is %s; want one to the console at %s", link, s.console)
	}
	token := func() (string, error) {
		text, err := os.ReadFile(s.file("token-" + hostName))
		return string(text), err
	}
	list, err := (&hostagent.Sharing{Relays: []string{s.url}, Token: token}).List(t.Context())
	must(t, err)
	if len(list) != 1 || !strings.HasPrefix(list[0].Session, "sealed:/") {
		t.Fatalf("the relay lists %+v; want one link, without its session", list)
	}
	if shown := s.share("shares"); !strings.Contains(shown, "demo:/login") || !strings.Contains(shown, list[0].ID) {
		t.Errorf("the host's owner sees %s; want the session", shown)
	}

	// ahp-connect opens the same link, and gets the relay's token for it.
	programs, err := procs.BuildConnect(t.Context())
	must(t, err)
	dir := t.TempDir()
	pair := exec.CommandContext(t.Context(), filepath.Join(programs, procs.ConnectProgram),
		"--state-dir", dir, "--key-file", "pair", link, "--token-file", filepath.Join(dir, "token"))
	if out, err := pair.CombinedOutput(); err != nil || !strings.Contains(string(out), "demo:/login of "+hostName+" opens by this link") {
		t.Errorf("ahp-connect pair with the link: %v, %s; want the session", err, out)
	}

	p.do(phone(), colours("light"), chromedp.Navigate(link))
	p.wants("#turns", "Done. 500 runs")
	if address := eval[string](p, "location.href"); strings.Contains(address, "link=") || strings.Contains(address, "join=") {
		t.Errorf("the address contains the link's keys: %s; want them removed", address)
	}
	p.shot("sealed-link")
	p.do(chromedp.Reload())
	p.wants("#turns", "Done. 500 runs")
	p.click("#back")
	p.holds("one session", "document.querySelectorAll('#sessions li').length === 1")

	s.share("unshare", list[0].ID)
	// The link is revoked at the host. The host ends the connection, and the relay revokes
	// its token. The page shows the message that came last.
	p.holds("the link's end", "/removed|revoked/.test(['#status-text', '#token-why'].map((at) => document.querySelector(at)?.textContent ?? '').join())")
	devices, err := s.control.Devices(t.Context())
	must(t, err)
	if len(devices.Devices) != 0 {
		t.Errorf("the host has the devices %+v; want none after the link's end", devices.Devices)
	}
}
