package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/internal/sealed"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
)

// TestShareNeedsASession shares a session that the host does not have: share fails, and
// no link exists afterwards. For a session that the host has, share prints a link, but not
// with the lifetime 0, and not when the session is private.
func TestShareNeedsASession(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t)
	grant, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := refclient.Dial(t.Context(), "ws"+relay.URL()[len("http"):]+"/ahp/laptop", refclient.Options{Token: grant})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Abort()
	if _, err := client.Initialize(t.Context(), refclient.InitializeParams{ClientID: "c", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Call(t.Context(), "createSession", map[string]any{"channel": "demo:/1", "provider": "demo"}); err != nil {
		t.Fatal(err)
	}
	at := []string{"--relay", relay.URL(), "--token-file", token}
	out, err := agent(t.Context(), t, append([]string{"share", "demo:/none", "--no-qr"}, at...)...)
	if err == nil || out != "" {
		t.Errorf("share = %q, %v; want an error", out, err)
	} else {
		for _, want := range []string{"demo:/none", "laptop", "no such session"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q in it", err, want)
			}
		}
	}
	if out, err := agent(t.Context(), t, append([]string{"shares"}, at...)...); err != nil || out != "" {
		t.Errorf("shares = %q, %v; want none", out, err)
	}
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr", "--ttl", "0s"}, at...)...); err == nil || out != "" || !strings.Contains(err.Error(), "--ttl is 0s") {
		t.Errorf("share --ttl 0s = %q, %v; want a refusal that names --ttl", out, err)
	}
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err != nil || !strings.HasPrefix(out, relay.URL()+"/s#") {
		t.Errorf("share = %q, %v; want a link", out, err)
	}
	at[1] = controls(t, relay.URL())
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err != nil || !strings.Contains(out, "[2Js#") || strings.Contains(out, "\x1b") {
		t.Errorf("share at a relay that sends control characters = %q, %v; want the link without them", out, err)
	}
	for _, method := range []string{"subscribe", "relay/private"} {
		if _, err := client.Call(t.Context(), method, map[string]any{"channel": "demo:/1", "private": true}); err != nil {
			t.Fatal(err)
		}
	}
	at[1] = relay.URL()
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err == nil || out != "" || !strings.Contains(err.Error(), "the session is private") {
		t.Errorf("share of a private session = %q, %v; want an error that says so", out, err)
	}
	stop()
}

// TestHostsOfOneNameAtTwoRelays serves a host at two relays, which both know it as laptop, with credentials in one
// directory. Each host-agent must have its own key and control socket, and write its state: commands with a credential reach the
// host-agent of that credential, and a command that names the host alone is told of both.
func TestHostsOfOneNameAtTwoRelays(t *testing.T) {
	runtime, err := os.MkdirTemp("", "r") // the path is short, because a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runtime) })
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	at := map[string]string{} // credentials files, by relay
	for _, name := range []string{"a.credential", "b.credential"} {
		relay, token := newRelay(t)
		file := filepath.Join(dir, name)
		if _, err := agent(t.Context(), t, "enroll", "--relay", relay.URL(), "--token-file", token, "--credentials-file", file); err != nil {
			t.Fatal(err)
		}
		at[relay.URL()] = file
		host := newHost(t, agenthost.Config{})
		running.Go(func() {
			if err := run(ctx, []string{"run", "--relay", relay.URL(), "--credentials-file", file, "--upstream", host, "--sealed"}, io.Discard, io.Discard); err != nil {
				t.Errorf("the host-agent of %s ended with %v; want no error", relay.URL(), err)
			}
		})
		flags := shareFlags{CredentialsFile: file}
		sharing, err := flags.sharing()
		if err != nil {
			t.Fatal(err)
		}
		natssite.Eventually(t, "the host-agent of "+relay.URL()+" answers commands", func() bool {
			_, _, is := flags.sealed(t.Context(), sharing)
			return is
		})
	}
	_, err = agent(t.Context(), t, "devices", "--host", "laptop")
	if err == nil {
		t.Error("devices --host laptop has chosen one of two host-agents; want an error")
	}
	words := map[string]bool{}
	for url, file := range at {
		if err == nil || !strings.Contains(err.Error(), "laptop@"+strings.ReplaceAll(url[len("http://"):], ":", "_")+".sock") {
			t.Errorf("%v; want the control socket of %s in it", err, url)
		}
		flags := shareFlags{CredentialsFile: file}
		sharing, err := flags.sharing()
		if err != nil {
			t.Fatal(err)
		}
		control, _, _ := flags.sealed(t.Context(), sharing)
		if _, err := control.OrderDevices(t.Context(), hostagent.DeviceOrder{Do: "pair", Subject: "owner", Level: auth.AccessAdmin}); err != nil {
			t.Errorf("no code for a device of %s: %v", url, err)
		}
		list, err := control.Devices(t.Context())
		if err != nil || words[list.Words] {
			t.Errorf("the host at %s has the key of words %q, %v; want a key of its own", url, list.Words, err)
		}
		words[list.Words] = true
	}
}

// controls returns the address of a proxy in front of a relay that puts control characters into the links that the relay makes.
func controls(t *testing.T, relay string) string {
	t.Helper()
	at, err := url.Parse(relay)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.Request.URL.Path != "/agent/shares" {
			return nil
		}
		text, err := io.ReadAll(answer.Body)
		text = bytes.ReplaceAll(text, []byte("/s#"), []byte(`/\u001b[2Js#`))
		answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		answer.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// TestUnshareNamesTheMissingLink revokes a link that does not exist. The error must name
// the link, and must not say that the relay is missing.
func TestUnshareNamesTheMissingLink(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t)
	out, err := agent(t.Context(), t, "unshare", "NONE", "--relay", relay.URL(), "--token-file", token)
	if err == nil || out != "" || !strings.Contains(err.Error(), "link NONE: not found") || strings.Contains(err.Error(), "no relay") {
		t.Errorf("unshare = %q, %v; want that the link is not found", out, err)
	}
	stop()
}

// TestUnshareOfASealedHostNeedsItsHostAgent revokes a sealed host's link without its
// host-agent's control socket, by ID and with --all. The relay must end the link, but the
// host still admits its holders: unshare must fail, and name the command that ends the link
// at the host.
func TestUnshareOfASealedHostNeedsItsHostAgent(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t, "--sealed", "--state-dir", t.TempDir())
	from := hostFlags{TokenFile: token}
	sharing := &hostagent.Sharing{Relays: []string{relay.URL()}, Token: from.token}
	first, second := strings.Repeat("a", 22), strings.Repeat("b", 22)+";true"
	for _, all := range []bool{false, true} {
		link, err := sharing.Share(t.Context(), hostagent.ShareAsk{Session: sealedScheme + first})
		if err != nil {
			t.Fatal(err)
		}
		which, want := link.ID, "host-agent devices --remove="+first
		if all {
			if _, err := sharing.Share(t.Context(), hostagent.ShareAsk{Session: sealedScheme + second}); err != nil {
				t.Fatal(err)
			}
			which, want = "--all", want+"; host-agent devices --remove='"+second+"'"
		}
		out, err := agent(t.Context(), t, "unshare", which, "--relay", relay.URL(), "--token-file", token, "--control", filepath.Join(t.TempDir(), "none"))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("unshare %s = %q, %v; want an error that names the command for each link at the host", which, out, err)
		}
		if list, err := sharing.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("links after unshare %s: %v, %v; want none", which, list, err)
		}
	}
	stop()
}

// TestUnshareAtASealedHostShowsTheEndedLink revokes links of a sealed host by their IDs. A relay that names the right
// link has it ended at the host. If a relay names none of the host's links, unshare fails, because the host
// still admits the link's holders. An expired link admits no device, and is not ended. The relay ends its own link in
// any case, also if the host cannot end the link.
func TestUnshareAtASealedHostShowsTheEndedLink(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t)
	defer stop()
	from := hostFlags{TokenFile: token}
	sharing := &hostagent.Sharing{Relays: []string{relay.URL()}, Token: from.token}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan string, 2)
	var end atomic.Pointer[time.Time]
	control := http.NewServeMux()
	control.HandleFunc("GET /devices", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(hostagent.Devices{Devices: []hostagent.DeviceInfo{{Fingerprint: "linked", Session: "demo:/1", People: 64, End: *end.Load()}, {Fingerprint: "full", Session: "demo:/2", People: 64, End: *end.Load()}, {Fingerprint: "owner"}}})
	})
	control.HandleFunc("POST /devices", func(w http.ResponseWriter, r *http.Request) {
		var order hostagent.DeviceOrder
		_ = json.NewDecoder(r.Body).Decode(&order)
		removed <- order.Do + " " + order.Device
		if order.Device == "full" {
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"error":"the list is full"}`))
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	server := &http.Server{Handler: control}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	over, later := time.Now(), time.Now().Add(time.Hour)
	for _, test := range []struct {
		session, removed, says string
		end                    *time.Time
	}{
		{sealedScheme + "linked", "remove linked", "", &later},
		{sealedScheme + "full", "remove full", "still admits the holders of the link to demo:/2: host-agent: the list is full", &later},
		{sealedScheme + "owner", "", "has ended no link", &later},
		{"demo:/1", "", "has ended no link", &later},
		{sealedScheme + "removed", "", "", &over},
	} {
		end.Store(test.end)
		link, err := sharing.Share(t.Context(), hostagent.ShareAsk{Session: test.session})
		if err != nil {
			t.Fatal(err)
		}
		out, err := agent(t.Context(), t, "unshare", link.ID, "--relay", relay.URL(), "--token-file", token, "--control", path)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("unshare of the relay's link to %s = %q, %v; want an error with %q", test.session, out, err, test.says)
		}
		got := ""
		if len(removed) > 0 {
			got = <-removed
		}
		if got != test.removed {
			t.Errorf("unshare of the relay's link to %s orders %q at the host; want %q", test.session, got, test.removed)
		}
		if list, err := sharing.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("after unshare of the relay's link to %s, the relay has %v, %v; want no link", test.session, list, err)
		}
	}
}

// TestInterruptedShareLeavesNoLink interrupts share when the relay has the link, and, for a
// sealed host, when the host has it. No link exists afterwards.
func TestInterruptedShareLeavesNoLink(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t)
	defer stop()
	sharing := &hostagent.Sharing{Relays: []string{relay.URL()}, Token: (&hostFlags{TokenFile: token}).token}
	link, err := sharing.Share(t.Context(), hostagent.ShareAsk{Session: "demo:/1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tried(ctx, sharing, link, "demo:/1"); !errors.Is(err, context.Canceled) {
		t.Errorf("share that is interrupted at the relay = %v; want the interrupt", err)
	}
	if list, err := sharing.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after an interrupted share, the relay has %v, %v; want no link", list, err)
	}

	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := sealed.LinkKeys(device)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan string, 1)
	host := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var order hostagent.DeviceOrder
		_ = json.NewDecoder(r.Body).Decode(&order)
		if order.Do == "remove" {
			removed <- order.Device
		}
		_ = json.NewEncoder(w).Encode(hostagent.SealedLink{ID: "made", HostKey: base64.RawURLEncoding.EncodeToString(make([]byte, sealed.KeySize)), Keys: keys})
	})}
	go func() { _ = host.Serve(listener) }()
	defer host.Close()
	ctx, cancel = context.WithCancel(t.Context())
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }))
	defer slow.Close()
	sharing.Relays = []string{slow.URL}
	if _, err := (&shareCmd{}).makeSealed(ctx, sharing, hostagent.Control{Path: path}, "demo:/1"); err == nil {
		t.Error("share that is interrupted at a sealed host has made a link; want the interrupt")
	}
	select {
	case id := <-removed:
		if id != "made" {
			t.Errorf("share removes %q at the host; want the link that it has made", id)
		}
	default:
		t.Error("the sealed host keeps the link of an interrupted share")
	}
}

// TestShareOfASealedHostNeedsItsHostAgent runs share for a sealed host without its
// host-agent's control socket. share fails, and the relay has no link afterwards.
func TestShareOfASealedHostNeedsItsHostAgent(t *testing.T) {
	t.Parallel()
	relay, token, _, stop := runHostAgent(t, "--sealed", "--state-dir", t.TempDir())
	at := []string{"--relay", relay.URL(), "--token-file", token, "--control", filepath.Join(t.TempDir(), "none")}
	if out, err := agent(t.Context(), t, append([]string{"share", "demo:/1", "--no-qr"}, at...)...); err == nil || out != "" || !strings.Contains(err.Error(), "is sealed") {
		t.Errorf("share = %q, %v; want a refusal that names the sealed host", out, err)
	}
	if out, err := agent(t.Context(), t, append([]string{"shares"}, at...)...); err != nil || out != "" {
		t.Errorf("shares = %q, %v; want none", out, err)
	}
	stop()
}
