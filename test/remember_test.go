package test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/remember"
	operatorapi "ahprelay/gateway/api/operator"
	rememberedapi "ahprelay/gateway/api/remembered"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// keysOf requests the keys of remembered sessions from the host-agent, as a client.
func keysOf(t *testing.T, c *refclient.Client) (keys remembering.Keys) {
	t.Helper()
	if err := json.Unmarshal(call(t, c, "relay/rememberKeys", `{"channel":"ahp-root://"}`), &keys); err != nil {
		t.Fatal(err)
	}
	return keys
}

// openWith decrypts a record with keys, as a device does, and returns its text. It
// fails the test if the host's signature is wrong.
func openWith(t *testing.T, keys remembering.Keys, r *remember.Record) string {
	t.Helper()
	verifier, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), keys.Verifier)
	if err != nil {
		t.Fatal(err)
	}
	vault := remember.Vault{Tenant: stack.Tenant, Host: stack.Host, Key: keys.Key}
	content, err := vault.Open(verifier, r)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// remembered is the API's list of a host's remembered sessions.
type remembered struct {
	Sessions []struct{ ID string }
	List     *rememberedapi.Kept
}

func rememberedAt(t *testing.T, s *stack.Stack, change func(*auth.Client)) (remembered, error) {
	t.Helper()
	token, err := s.Token(change)
	if err != nil {
		t.Fatal(err)
	}
	return procs.GetJSON[remembered](t.Context(), s.Relay.URL()+"/api/hosts/"+stack.Host+"/remembered", token)
}

func rememberedSession(t *testing.T, s *stack.Stack, session string, change func(*auth.Client)) (rememberedapi.Kept, error) {
	t.Helper()
	token, err := s.Token(change)
	if err != nil {
		t.Fatal(err)
	}
	return procs.GetJSON[rememberedapi.Kept](t.Context(), s.Relay.URL()+"/api/hosts/"+stack.Host+"/remembered/session?uri="+url.QueryEscape(session), token)
}

// rememberingStack starts a stack with a host-agent that stores the last state of sessions at
// the relay. It also returns the relay's data directory.
func rememberingStack(t *testing.T, mode remembering.Mode) (s *stack.Stack, dir string) {
	t.Helper()
	_, server := newRefhost(t, nil)
	state, dir := t.TempDir(), t.TempDir()
	return startStackWith(t, stack.Config{Upstream: server.URL(), DataDir: dir}, func(_ *stack.Stack, cfg *hostagent.Config) error {
		cfg.Remember, cfg.StateDir = mode, state
		return nil
	}), dir
}

// speak creates a session, runs a turn with the text, and waits for the turn's end.
func speak(t *testing.T, c *refclient.Client, vars map[string]string, text string) {
	t.Helper()
	create(t, c, vars)
	watch(t, c, vars)
	say(t, c, vars["chat"], 1, text)
	if _, err := c.WaitFor(t.Context(), refclient.IsAction(vars["chat"], "chat/turnComplete")); err != nil {
		t.Fatal(err)
	}
}

// findText returns the names of the files below a directory that contain text.
func findText(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		if errors.Is(err, fs.ErrNotExist) { // a temporary file has just been removed
			err = nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The host goes away. Clients decrypt the last answer of its sessions with keys that
// they got before. A client gets the records and keys of the sessions in its token, and
// no others. The relay's files contain no readable text.
func TestLastStateIsReadableWhileTheHostIsAway(t *testing.T) {
	t.Parallel()
	s, dir := rememberingStack(t, remembering.Turns)
	c := join(t, throughRelay(t, s), "a", nil)
	one, two := flowVars("demo", "00000001"), flowVars("demo", "00000002")
	speak(t, c, one, "unmistakable-one")
	speak(t, c, two, "unmistakable-two")
	keys := keysOf(t, c)
	if len(keys.Key) != remember.KeySize || keys.Records != nil {
		t.Fatalf("a client with all sessions got a key of %d bytes and %d records' keys; want the key only", len(keys.Key), len(keys.Records))
	}
	only := func(c *auth.Client) { c.Access, c.Channels = auth.AccessRead, []string{one["session"]} }
	token, err := s.Token(only)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Abort()
	if _, err := guest.Initialize(t.Context(), refclient.InitializeParams{ClientID: "guest"}); err != nil {
		t.Fatal(err)
	}
	given := keysOf(t, guest)
	if _, has := given.Records[remember.IDOf(one["session"])]; !has || len(given.Records) != 1 || given.Key != nil {
		t.Errorf("a guest of one session gets %v; want that session's key alone", given)
	}

	natssite.Eventually(t, "both sessions are at the relay", func() bool {
		all, err := rememberedAt(t, s, nil)
		if err != nil || all.List == nil {
			return false
		}
		list := openWith(t, keys, all.List.Record)
		return strings.Contains(list, one["session"]) && strings.Contains(list, two["session"]) && len(all.Sessions) == 3
	})
	if err := s.StopAgent(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "offline")
	for i, vars := range []map[string]string{one, two} {
		kept, err := rememberedSession(t, s, vars["session"], nil)
		if err != nil {
			t.Fatal(err)
		}
		said := openWith(t, keys, kept.Record)
		if want := []string{"unmistakable-one", "unmistakable-two"}[i]; !strings.Contains(said, want) || !strings.Contains(said, `"chat":"`+vars["chat"]) {
			t.Errorf("session %d is %s; want its prompt and chat", i, said)
		}
		if time.Since(kept.Stored) > time.Minute || time.Since(kept.Stored) < 0 {
			t.Errorf("the record was stored %v ago; want at most 1 min", time.Since(kept.Stored))
		}
	}
	kept, err := rememberedSession(t, s, one["session"], only)
	if err != nil {
		t.Fatal(err)
	}
	key := given.Records[kept.Record.ID]
	if want := (&remember.Vault{Tenant: stack.Tenant, Host: stack.Host, Key: keys.Key}).RecordKey(kept.Record.ID); !bytes.Equal(key, want) {
		t.Error("the guest's key differs from the record's; want the same")
	}
	if _, err := rememberedSession(t, s, two["session"], only); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a different session for the guest: %v; want 404", err)
	}
	if _, err := rememberedAt(t, s, only); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("the list for the guest: %v; want 403", err)
	}
	elsewhere := func(c *auth.Client) { c.Hosts = []string{"other"} }
	if _, err := rememberedSession(t, s, one["session"], elsewhere); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the session for a token of a different host: %v; want 404", err)
	}
	if _, err := rememberedSession(t, s, one["session"], func(c *auth.Client) { c.Methods = []string{"listSessions"} }); err == nil {
		t.Error("a token without subscribe reads a session; want an error")
	}
	s.Relay.Close() // the relay has then written everything to disk
	for _, text := range []string{"unmistakable", one["session"], "turnId", `"title"`} {
		if found := findText(t, dir, text); found != nil {
			t.Errorf("the text %q is readable in the files %v; want it encrypted", text, found)
		}
	}
	if found := findText(t, dir, "remembered"); found == nil {
		t.Error("findText finds no file with the stream's name; want one, so that the search works")
	}
}

// The relay restarts, and still has the last state of sessions. The host-agent restarts
// too, keeps its keys, and writes a session's record again only after the session has
// changed.
func TestLastStateSurvivesTheRelay(t *testing.T) {
	t.Parallel()
	s, _ := rememberingStack(t, remembering.Turns)
	c := join(t, throughRelay(t, s), "a", nil)
	vars := flowVars("demo", "00000003")
	speak(t, c, vars, "before the restart")
	keys := keysOf(t, c)
	var before rememberedapi.Kept
	natssite.Eventually(t, "the session is at the relay", func() bool {
		all, err := rememberedAt(t, s, nil)
		if err != nil || all.List == nil || !strings.Contains(openWith(t, keys, all.List.Record), `"kept":{"`+remember.IDOf(vars["session"])) {
			return false
		}
		before, err = rememberedSession(t, s, vars["session"], nil)
		return err == nil
	})
	if err := s.StopAgent(); err != nil {
		t.Fatal(err)
	}
	s.Relay.Close()
	if err := s.StartRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the restarted relay has the session", func() bool {
		kept, err := rememberedSession(t, s, vars["session"], nil)
		return err == nil && kept.Record.Version == before.Record.Version && strings.Contains(openWith(t, keys, kept.Record), "before the restart")
	})
	if err := s.StartAgent(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
	again := join(t, throughRelay(t, s), "b", nil)
	if after := keysOf(t, again); !bytes.Equal(after.Key, keys.Key) || !bytes.Equal(after.Verifier, keys.Verifier) {
		t.Error("the restarted host-agent has different keys; want the same")
	}
	other := flowVars("demo", "00000004")
	speak(t, again, other, "after the restart")
	natssite.Eventually(t, "the second session is at the relay", func() bool {
		_, err := rememberedSession(t, s, other["session"], nil)
		return err == nil
	})
	kept, err := rememberedSession(t, s, vars["session"], nil)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Record.Version != before.Record.Version {
		t.Errorf("a session at rest was written again: its version is %d; want %d", kept.Record.Version, before.Record.Version)
	}
	late, err := rememberedSession(t, s, other["session"], nil)
	if err != nil {
		t.Fatal(err)
	}
	if late.Record.Version <= before.Record.Version {
		t.Errorf("version %d after the restart; want more than %d", late.Record.Version, before.Record.Version)
	}
}

// When the token of a client that has the keys for remembered sessions is revoked, the
// host-agent makes new keys, seals all records with them at once, and notifies the other
// clients.
func TestRevokedClientLosesTheKeys(t *testing.T) {
	t.Parallel()
	for name, revoke := range map[string]operatorapi.RevokeRequest{
		"its subject": {Tenant: stack.Tenant, Subject: "eve"},
		"the grant from which its token is derived": {Token: "mallorys-token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			revokedClientLosesTheKeys(t, revoke)
		})
	}
}

func revokedClientLosesTheKeys(t *testing.T, revoke operatorapi.RevokeRequest) {
	s, _ := rememberingStack(t, remembering.Turns)
	ada := join(t, throughRelay(t, s), "ada", nil)
	vars := flowVars("demo", "00000006")
	speak(t, ada, vars, "for ada alone")
	eve, err := s.Token(func(c *auth.Client) {
		c.Subject, c.ID, c.Origins = "eve", "eves-token", []auth.Origin{{ID: "mallorys-token", Subject: "mallory", Issued: time.Now().Unix()}}
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: eve})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	if _, err := c.Initialize(t.Context(), refclient.InitializeParams{ClientID: "eve"}); err != nil {
		t.Fatal(err)
	}
	before, same := keysOf(t, c), keysOf(t, ada)
	if !bytes.Equal(before.Key, same.Key) {
		t.Fatal("two clients with the same authority have different keys; want the same")
	}
	natssite.Eventually(t, "the session is at the relay", func() bool {
		kept, err := rememberedSession(t, s, vars["session"], nil)
		return err == nil && strings.Contains(openWith(t, before, kept.Record), "for ada alone")
	})
	(&pair{t: t, first: s.Relay}).revoke(revoke)
	wantClosed(t, c, ahp.CloseTokenEnded, "token")
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, err := ada.WaitFor(ctx, refclient.IsNotification("relay/rememberKeysChanged")); err != nil {
		t.Fatal(err)
	}
	after := keysOf(t, ada)
	if after.KeyID == before.KeyID || bytes.Equal(after.Key, before.Key) {
		t.Fatal("the keys are the same after the revocation; want new ones")
	}
	natssite.Eventually(t, "all records are sealed again", func() bool {
		all, err := rememberedAt(t, s, nil)
		if err != nil || all.List == nil || all.List.Record.Key != after.KeyID {
			return false
		}
		kept, err := rememberedSession(t, s, vars["session"], nil)
		return err == nil && kept.Record.Key == after.KeyID && strings.Contains(openWith(t, after, kept.Record), "for ada alone")
	})
}

// The owner changes what the host-agent stores at the relay. With titles, the record of
// a conversation is removed. With off, all records and the keys are removed.
func TestRememberedIsBoundedByTheOwner(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	state, mode := t.TempDir(), remembering.Turns
	s := startStackWith(t, stack.Config{Upstream: server.URL()}, func(_ *stack.Stack, cfg *hostagent.Config) error {
		cfg.Remember, cfg.StateDir = mode, state
		return nil
	})
	vars := flowVars("demo", "00000005")
	speak(t, join(t, throughRelay(t, s), "a", nil), vars, "hello")
	await := func(records int) {
		t.Helper()
		natssite.Eventually(t, fmt.Sprint(records, " records are at the relay"), func() bool {
			all, err := rememberedAt(t, s, nil)
			return err == nil && len(all.Sessions) == records
		})
	}
	restart := func(to remembering.Mode) {
		t.Helper()
		mode = to
		if err := errors.Join(s.StopAgent(), s.StartAgent()); err != nil {
			t.Fatal(err)
		}
	}
	await(2)
	restart(remembering.Titles)
	await(1)
	restart(remembering.Off)
	await(0)
	wantNoKeys(t, state)
}

// wantNoKeys waits until a state directory contains no keys for remembered sessions.
func wantNoKeys(t *testing.T, state string) {
	t.Helper()
	natssite.Eventually(t, "the keys are removed behind the records", func() bool {
		found, err := filepath.Glob(filepath.Join(state, "remembered.*"))
		return err == nil && len(found) == 0
	})
}

// TestSealingRemovesRememberedState seals a host whose last state is at the relay. The
// old records and keys are removed. New records have IDs that do not reveal the
// session, and new keys. With off, the new records are removed, too.
func TestSealingRemovesRememberedState(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	state := t.TempDir()
	var sealing *hostagent.Sealing
	mode := remembering.Turns
	s := startStackWith(t, stack.Config{Upstream: server.URL()}, func(_ *stack.Stack, cfg *hostagent.Config) error {
		cfg.Remember, cfg.StateDir, cfg.Sealed = mode, state, sealing
		return nil
	})
	vars := flowVars("demo", "00000007")
	session := vars["session"]
	speak(t, join(t, throughRelay(t, s), "a", nil), vars, "hello")
	await := func(records int) {
		t.Helper()
		natssite.Eventually(t, fmt.Sprint(records, " records are at the relay"), func() bool {
			all, err := rememberedAt(t, s, nil)
			return err == nil && len(all.Sessions) == records
		})
	}
	await(2)
	before := wantKeys(t, state)
	sealing = new(hostagent.Sealing)
	if err := errors.Join(s.StopAgent(), s.StartAgent()); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the relay has blind records", func() bool {
		all, err := rememberedAt(t, s, nil)
		return err == nil && all.List != nil && all.List.Record.Blind && len(all.Sessions) == 2 && all.Sessions[0].ID != remember.IDOf(session) && all.Sessions[1].ID != remember.IDOf(session)
	})
	var was, is struct{ Key, Signer []byte }
	if err := errors.Join(json.Unmarshal(before, &was), json.Unmarshal(wantKeys(t, state), &is)); err != nil || bytes.Equal(was.Key, is.Key) || bytes.Equal(was.Signer, is.Signer) {
		t.Errorf("the keys from before the sealing are still in use: %v; want new ones", err)
	}
	mode = remembering.Off
	if err := errors.Join(s.StopAgent(), s.StartAgent()); err != nil {
		t.Fatal(err)
	}
	await(0)
	wantNoKeys(t, state)
}
