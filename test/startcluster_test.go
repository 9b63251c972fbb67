package test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/procs"
	"ahprelay/test/testca"
)

// TestClusterStartsRelayByRelay follows the first start in docs/operating.md, with its
// command for copying the keys. Three relays with TLS start in turn, with the same port
// at different addresses. The first relay waits and names the missing relays. After the
// second start both serve hosts, and the third relay then joins. The operator's
// commands work at each relay with only the data directory.
func TestClusterStartsRelayByRelay(t *testing.T) {
	t.Parallel()
	w := newClusterWalk(t)
	w.start(0)
	w.until("the first relay names the relays that it waits for", func() error {
		if err := procs.Ready(w.client, w.url(0)); err == nil {
			return errors.New("it is ready, alone of three")
		}
		log := w.relays[0].Log()
		for _, other := range w.addresses[1:] {
			if !strings.Contains(log, other) {
				return fmt.Errorf("%s is not in its log:\n%s", other, log)
			}
		}
		return nil
	})
	for i, name := range []string{"b", "c"} {
		w.copyKeys(name)
		w.start(i + 1)
		for served := range i + 2 {
			w.until(fmt.Sprintf("relay %d of %d is ready", served+1, i+2), func() error { return procs.Ready(w.client, w.url(served)) })
		}
		if i == 0 {
			w.startHost()
		}
	}
	bob := strings.TrimSpace(w.do(0, "token", "client", "--host", procs.Host, "--subject", "bob"))
	for i := range w.relays {
		w.until("the host is online at each relay", func() error {
			info, err := procs.GetJSONBy[hostsapi.Info](t.Context(), w.client, w.url(i)+"/api/hosts/"+procs.Host, bob)
			if err == nil && info.State != "online" {
				err = fmt.Errorf("it is %s", info.State)
			}
			return err
		})
		if said := w.do(i, "hosts"); !strings.Contains(said, procs.Host) || !strings.Contains(said, "online") {
			t.Errorf("hosts at relay %d: %s; want the host online", i+1, said)
		}
		if said := w.do(i, "check"); !strings.Contains(said, "relay at "+w.url(i)) || !strings.Contains(said, "1 hosts enrolled, 1 online") {
			t.Errorf("check at relay %d: %s; want its address, and 1 host online", i+1, said)
		}
		file := filepath.Join(w.bench.Dir, fmt.Sprintf("diag-%d.tar.gz", i))
		if said := w.do(i, "diag", file); strings.Contains(said, "missing") {
			t.Errorf("diag at relay %d: %s; want no missing parts", i+1, said)
		}
	}
	if said := w.do(1, "revoke", "--subject", "bob"); !strings.Contains(said, w.url(1)) {
		t.Errorf("revoke prints %s; want the second relay's address", said)
	}
	for i := range w.relays {
		w.until("each relay refuses the revoked token", func() error {
			_, err := procs.GetJSONBy[hostsapi.Info](t.Context(), w.client, w.url(i)+"/api/hosts/"+procs.Host, bob)
			if err == nil || !strings.Contains(err.Error(), "401") {
				return fmt.Errorf("relay %d: %v; want HTTP 401", i+1, err)
			}
			return nil
		})
	}
}

// A clusterWalk is a cluster with three relays in the data directories a, b and c.
type clusterWalk struct {
	*testing.T
	bench     procs.Bench
	relays    []*procs.Process
	addresses []string // addresses at which the relays reach each other
	at        string   // the relays' host, without a port
	ca        string
	client    *http.Client
	recipe    string // documented command that copies the keys from a to b
}

func newClusterWalk(t *testing.T) *clusterWalk {
	t.Helper()
	programs, err := procs.Build(t.Context())
	must(t, err)
	w := &clusterWalk{T: t, bench: procs.Bench{Programs: programs, Dir: t.TempDir()}}
	w.at, err = procs.FreeAddress()
	must(t, err)
	cert, key, err := testca.WriteFilesFor(net.ParseIP(w.at), w.bench.Dir)
	must(t, err)
	w.ca = cert
	pem, err := os.ReadFile(cert)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	w.client = &http.Client{Timeout: stepTime, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	text, err := os.ReadFile("../docs/operating.md")
	must(t, err)
	found := regexp.MustCompile("`(install -d [^`]* cp -a a/keys [^`]*)`").FindSubmatch(text)
	if found == nil {
		t.Fatal("docs/operating.md lacks the command that copies the keys")
	}
	w.recipe = string(found[1])
	for i := range 3 {
		w.addresses = append(w.addresses, fmt.Sprintf("%s:%d", w.at, 6222+i))
	}
	for i, name := range []string{"a", "b", "c"} {
		w.relays = append(w.relays, w.bench.Process("", "relay-"+name, procs.RelayProgram, "serve", "--data-dir", filepath.Join(w.bench.Dir, name),
			"--listen", strings.TrimPrefix(w.url(i), "https://"), "--tls-cert", cert, "--tls-key", key, "--admin-listen", "none",
			"--cluster-listen", w.addresses[i], "--cluster-route", strings.Join(w.addresses, ",")))
	}
	t.Cleanup(func() {
		w.bench.Kill()
		must(t, w.bench.Verify())
	})
	return w
}

func (w *clusterWalk) url(i int) string { return fmt.Sprintf("https://%s:%d", w.at, 9443+i) }

func (w *clusterWalk) start(i int) {
	w.Helper()
	must(w.T, w.relays[i].Start())
}

// until repeats look until it returns no error. state names the condition for the
// failure message.
func (w *clusterWalk) until(state string, look func() error) {
	w.Helper()
	err := look()
	for deadline := time.Now().Add(2 * stepTime); err != nil && time.Now().Before(deadline); err = look() {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		w.Fatalf("this state is not reached: %s: %v", state, err)
	}
}

// copyKeys runs the documented command for the directory to, instead of b.
func (w *clusterWalk) copyKeys(to string) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "sh", "-c", regexp.MustCompile(`\bb\b`).ReplaceAllString(w.recipe, to))
	cmd.Dir = w.bench.Dir
	if said, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("%s: %v: %s", w.recipe, err, said)
	}
}

// do runs an operator's command with the data directory of relay i, and returns its
// output.
func (w *clusterWalk) do(i int, args ...string) string {
	w.Helper()
	dir := filepath.Join(w.bench.Dir, []string{"a", "b", "c"}[i])
	out, err := exec.CommandContext(w.Context(), filepath.Join(w.bench.Programs, procs.RelayProgram), append(args, "--data-dir", dir)...).CombinedOutput()
	if err != nil {
		w.Fatalf("relay %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// startHost starts a host, and a host-agent with the addresses of all three relays.
func (w *clusterWalk) startHost() {
	w.Helper()
	token := filepath.Join(w.bench.Dir, "host.token")
	must(w.T, os.WriteFile(token, []byte(w.do(0, "token", "host", "--host", procs.Host)), 0o600))
	upstream := w.at + ":8090"
	host := w.bench.Process("", "host", procs.HostProgram, "--listen", upstream)
	must(w.T, host.Start())
	args := []string{"run", "--token-file", token, "--upstream", "ws://" + upstream, "--ca-file", w.ca}
	for i := range w.relays {
		args = append(args, "--relay", w.url(i))
	}
	must(w.T, w.bench.Process("", "host-agent", procs.AgentProgram, args...).Start())
}
