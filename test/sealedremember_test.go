package test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/remember"
	rememberedapi "ahprelay/gateway/api/remembered"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// blindRecord requests a record from the relay by its ID. Its token permits no session
// by name, like a paired device's.
func blindRecord(t *testing.T, s *stack.Stack, id string) (rememberedapi.Kept, error) {
	t.Helper()
	token, err := s.Token(func(c *auth.Client) { c.Access, c.Channels = auth.AccessRead, []string{"sealed:/link"} })
	if err != nil {
		t.Fatal(err)
	}
	return procs.GetJSON[rememberedapi.Kept](t.Context(), s.Relay.URL()+"/api/hosts/"+stack.Host+"/remembered/session?id="+url.QueryEscape(id), token)
}

// blindIDs returns the IDs of two sessions' records, computed with the keys of a
// device.
func blindIDs(keys remembering.Keys, one, two string) (string, string) {
	v := remember.Vault{Tenant: stack.Tenant, Host: stack.Host, Key: keys.Key, Blind: true}
	return v.IDOf(one), v.IDOf(two)
}

// TestSealedLastState reads a sealed host's last state while the host is absent. The
// devices use keys that they got from the host inside sealed connections. The relay
// cannot find a record by a session's name. After a device is removed, all records get
// new keys and IDs at once.
func TestSealedLastState(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	var dir string
	h := startSealed(t, server.URL(), func(c *stack.Config) { dir = c.DataDir }, func(_ *stack.Stack, agent *hostagent.Config) error {
		agent.Remember = remembering.Turns
		return nil
	})
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	owner := join(t, h.throughConnect(h.relays), "owner", nil)
	one, two := flowVars("demo", "00000011"), flowVars("demo", "00000012")
	speak(t, owner, one, "unmistakable-one")
	speak(t, owner, two, "unmistakable-two")
	made, l := h.link(hostagent.DeviceOrder{Session: one["session"]})
	viewer := h.dialed(h.throughConnect(h.followed(l)), "viewer")
	keys, shown := keysOf(t, owner), keysOf(t, viewer)
	idOne, idTwo := blindIDs(keys, one["session"], two["session"])
	if !keys.Blind || len(keys.Key) != remember.KeySize || len(keys.IDs) > 0 {
		t.Fatalf("the keys of the owner's device are %+v; want one blind key, without IDs", keys)
	}
	if !shown.Blind || shown.Key != nil || len(shown.Records) != 1 || len(shown.IDs) != 1 || shown.IDs[one["session"]] != idOne || shown.Records[idOne] == nil {
		t.Fatalf("the keys of a viewer of one session are %+v; want this session's record key and ID", shown)
	}
	if idOne == remember.IDOf(one["session"]) {
		t.Error("the record has the plain ID; want one that relays cannot compute")
	}
	natssite.Eventually(t, "both sessions are at the relay", func() bool {
		all, err := rememberedAt(t, h.Stack, nil)
		return err == nil && all.List != nil && strings.Contains(openWith(t, keys, all.List.Record), `"`+idTwo+`":`) && len(all.Sessions) == 3
	})
	if err := h.StopAgent(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, h.Stack, "offline")
	for id, want := range map[string]string{idOne: "unmistakable-one", idTwo: "unmistakable-two"} {
		kept, err := blindRecord(t, h.Stack, id)
		if err != nil {
			t.Fatal(err)
		}
		if said := openWith(t, keys, kept.Record); !strings.Contains(said, want) || !kept.Record.Blind {
			t.Errorf("the record opens as %s; want %s", said, want)
		}
	}
	if _, err := rememberedSession(t, h.Stack, one["session"], nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("by the session's name: %v; want 404", err)
	}
	if _, err := blindRecord(t, h.Stack, remember.ListID); err == nil {
		t.Error("a token for one session reads the list; want an error")
	}

	if err := h.StartAgent(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, h.Stack, "online")
	h.awaitControl(t.Context())
	owner = join(t, h.throughConnect(h.relays), "owner-again", nil)
	if again := keysOf(t, owner); again.KeyID != keys.KeyID {
		t.Error("the restarted host-agent has different keys; want the same")
	}
	h.removedSoon(owner, made.ID, idOne)
	after := keysOf(t, owner)
	next, _ := blindIDs(after, one["session"], two["session"])
	natssite.Eventually(t, "the sessions have new records", func() bool {
		all, err := rememberedAt(t, h.Stack, nil)
		kept, failed := blindRecord(t, h.Stack, next)
		return err == nil && failed == nil && len(all.Sessions) == 3 && all.List.Record.Key == after.KeyID && strings.Contains(openWith(t, after, kept.Record), "unmistakable-one")
	})
	h.Relay.Close() // the relay has then written everything to disk
	for _, text := range []string{"unmistakable", one["session"], remember.IDOf(one["session"]), remember.IDOf(two["session"]), `"title"`} {
		if found := findText(t, dir, text); found != nil {
			t.Errorf("the text %q is readable in the files %v; want it encrypted", text, found)
		}
	}
	if findText(t, dir, next) == nil {
		t.Error("findText finds no record's ID; want one, so that the search works")
	}
}

// removedSoon removes a device at the host. It waits until the relay has removed a
// record with the given ID, which the device could read.
func (h *sealedHost) removedSoon(owner *refclient.Client, device, id string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), stepTime)
	defer cancel()
	if _, err := h.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "remove", Device: device}); err != nil {
		h.t.Fatal(err)
	}
	from := time.Now()
	if _, err := owner.WaitFor(ctx, refclient.IsNotification("relay/rememberKeysChanged")); err != nil {
		h.t.Fatal(err)
	}
	natssite.Eventually(h.t, "the removed device's record is gone", func() bool {
		_, err := blindRecord(h.t, h.Stack, id)
		return err != nil && strings.Contains(err.Error(), "404")
	})
	took := time.Since(from).Round(time.Millisecond)
	if h.t.Logf("%v after the removal", took); took > 30*time.Second { // a minute would show that the host-agent's Keeper did not notice the removal
		h.t.Error("a removal takes effect at the next check; want it within 30 s")
	}
}

// TestUnsealedRecordsHaveNoIDs requests an unsealed host's record by its ID. The relay
// refuses the request, because everybody could compute the ID.
func TestUnsealedRecordsHaveNoIDs(t *testing.T) {
	t.Parallel()
	s, _ := rememberingStack(t, remembering.Turns)
	vars := flowVars("demo", "00000013")
	speak(t, join(t, throughRelay(t, s), "a", nil), vars, "hello")
	natssite.Eventually(t, "the session is at the relay", func() bool {
		_, err := rememberedSession(t, s, vars["session"], nil)
		return err == nil
	})
	if _, err := blindRecord(t, s, remember.IDOf(vars["session"])); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a token for a different session reads it by its ID: %v; want 404", err)
	}
}

// wantKeys fails unless a state directory has exactly one file with keys for remembered
// sessions. It returns the file's content.
func wantKeys(t *testing.T, state string) []byte {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(state, "remembered.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the files with keys are %v, %v; want 1", found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}
