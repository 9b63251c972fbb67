package test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// copyNewKeys copies key files from one data directory to another. It skips files that
// exist there.
func copyNewKeys(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(from, "keys"), func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(from, path)
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700)
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An operator adds new keys to two relays and retires the old ones, while a host
// streams to a client at each relay. Clients that renew their token, and the host, must keep
// their connections and lose no message. A client that does not must be closed, and a token
// signed with the retired keys must then be refused.
func TestKeysRollUnderLoad(t *testing.T) {
	t.Parallel()
	dir, listens := t.TempDir(), []string{natssite.FreePort(t), natssite.FreePort(t)}
	config := func(i int) (cfg gateway.RelayConfig) {
		cfg.ClusterListen, cfg.ClusterRoutes = listens[i], listens
		cfg.Gateway.AgentTTL, cfg.Gateway.Resume = 6*time.Second, patientResume
		return cfg
	}
	_, server := newRefhost(t, nil)
	var file string
	second := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	copyNewKeys(t, dir, second)
	cfg := config(1)
	cfg.DataDir, cfg.Listen, cfg.AdminListen = second, "127.0.0.1:0", gateway.NoListener
	starting, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	other, err := gateway.StartRelay(starting, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	s := startStackWith(t, stack.Config{DataDir: dir, Upstream: server.URL(), Relay: config(0), Agent: hostagent.Config{Resume: patientResume}},
		func(s *stack.Stack, agent *hostagent.Config) (err error) {
			file = enrol(t, s)
			agent.Token = nil
			agent.Credentials, err = hostagent.OpenCredentialFile(file)
			return err
		})
	through := func(r *gateway.Relay, token string) dialer {
		return func(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
			opts.Token = token
			return refclient.Dial(ctx, "ws"+r.URL()[len("http"):]+"/ahp/"+stack.Host, opts)
		}
	}
	former, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	known := func(token string) {
		t.Helper()
		eventually(t, "the other relay knows the host", func() bool {
			info, err := procs.GetJSON[hostsapi.Info](t.Context(), other.URL()+"/api/hosts/"+stack.Host, token)
			return err == nil && info.State == "online"
		})
	}
	known(former)
	vars := flowVars("demo", "00000000")
	clients := []*refclient.Client{join(t, through(s.Relay, former), "a", vars), join(t, through(other, former), "b", vars)}
	create(t, clients[0], vars)
	for _, c := range clients {
		watch(t, c, vars)
	}
	spoken := 0
	speak := func() {
		t.Helper()
		spoken++
		say(t, clients[0], vars["chat"], spoken, "stream 50 20 100")
		awaitDeltas(t, clients, 50*spoken)
	}
	speak()
	reload := func() {
		s.Relay.ReloadKeys()
		other.ReloadKeys()
	}
	first := s.Relay.Keys().SetIDs()[0]
	added, err := auth.AddKeys(dir, time.Now(), time.Now().Add(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	s.Relay.ReloadKeys()
	wantReady(t, other.URL(), "copy the directory keys")
	copyNewKeys(t, dir, second)
	reload()
	if ids := s.Relay.Keys().SetIDs(); len(ids) != 2 || ids[0] != first || ids[1] != added.ID {
		t.Fatalf("the keys are %v; want %s and %s", ids, first, added.ID)
	}
	wantReady(t, other.URL(), "ready\n")
	credentials, err := hostagent.OpenCredentialFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * stepTime); ; {
		speak()
		credential, err := credentials.Token()
		if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(added.Signs) && !s.Relay.Keys().Tokens().Outdated(credential) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the host-agent has not renewed its credential in time; want a new one")
		}
	}
	stale := join(t, through(other, former), "stale", nil)
	renewed, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		call(t, c, "relay/refreshToken", fmt.Sprintf(`{"channel":"ahp-root://","token":%q}`, renewed))
	}
	if err := auth.RetireKeys(dir, first, time.Now().Add(-time.Second), false); err == nil {
		t.Error("RetireKeys retires keys that may be in use; want an error")
	}
	for _, d := range []string{dir, second} {
		if err := auth.RetireKeys(d, first, time.Now().Add(-time.Second), true); err != nil {
			t.Fatal(err)
		}
	}
	reload()
	speak()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	for i, c := range clients {
		if err := c.Err(); err != nil {
			t.Errorf("client %d was closed: %v; want it connected", i, err)
		}
		want, got := s.Tap.Conns()[i].ToClient(), 0
		if _, err := c.WaitFor(ctx, func([]byte) bool { got++; return got == len(want)+1 }); err != nil {
			t.Fatal(err)
		}
		frames := slices.DeleteFunc(c.Frames(), func(frame []byte) bool { return bytes.Contains(frame, []byte("expiresAt")) }) // the relay's answer to refreshToken
		wantSameFrames(t, "viewer", frames[:len(want)], want)
	}
	eventually(t, "the client whose token is not renewed is closed", func() bool { return stale.Err() != nil })
	if _, err := through(s.Relay, former)(ctx, refclient.Options{}); err == nil {
		t.Error("a token from the retired keys connects; want a refusal")
	}
	wantReady(t, other.URL(), "restart this relay once")
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	known(token)
	call(t, join(t, through(other, token), "c", nil), "ping", `{"channel":"ahp-root://"}`)
}
