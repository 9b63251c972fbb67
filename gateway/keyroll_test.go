package gateway

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"
)

// TestRetiredKeysEndConnections retires the keys that have signed a client's token. Its connection
// must end. Clients with a token of the new keys must stay, also one that has refreshed its token.
func TestRetiredKeysEndConnections(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		stale, refreshed := w.dial(w.token(nil)), w.dial(w.token(nil))
		first := w.keys.SetIDs()[0]
		if _, err := auth.AddKeys(w.keysDir, time.Now(), time.Now()); err != nil {
			w.Fatal(err)
		}
		reload := func() {
			w.Helper()
			if changed, err := w.keys.Reload(); !changed || err != nil {
				w.Fatalf("Reload = %v, %v; want a change", changed, err)
			}
			w.server.revokedNow()
		}
		reload()
		fresh := w.dial(w.token(nil))
		refreshed.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"relay/refreshToken","params":{"channel":"ahp-root://","token":%q}}`, w.token(nil)))
		stale.wantOpen()
		if err := auth.RetireKeys(w.keysDir, first, time.Now(), true); err != nil {
			w.Fatal(err)
		}
		reload()
		stale.wantClosed(ahp.CloseTokenEnded, auth.ErrTokenRevoked.Error())
		refreshed.wantOpen()
		fresh.wantOpen()
	})
}

// TestRetiredKeysEndStoredAuthority retires the keys that have signed the tokens with which
// notification targets were set. A token without a device must have no authority any more. A device
// keeps its authority, but not if the token names a key that is not the device's: a thief of the
// relays' keys can make such a token.
func TestRetiredKeysEndStoredAuthority(t *testing.T) {
	dir := t.TempDir()
	relay, phone := setUpWith(t, func(cfg *RelayConfig) { cfg.DataDir = dir })
	stored := func(token string) (who auth.Client) {
		t.Helper()
		who, err := relay.Keys().Tokens().VerifyClient(token)
		if err == nil {
			err = json.Unmarshal(encode(t, who), &who)
		}
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{
		Tenant: "default", Subject: "ada", Hosts: []string{auth.AllHosts}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	alone, device := stored(token), stored(phone.in.Token)
	forged := device
	forged.Key = newPhone(t, relay).key.Thumbprint()
	want := func(when string, alonesGood bool) {
		t.Helper()
		for name, test := range map[string]struct {
			who  auth.Client
			good bool
		}{"a token without a device": {alone, alonesGood}, "a device": {device, true}, "a token with a foreign key": {forged, false}} {
			if _, good, err := relay.server.Load().people.Standing(test.who); good != test.good || err != nil {
				t.Errorf("%s, %s is valid: %v, %v; want %v", when, name, good, err, test.good)
			}
		}
	}
	want("before", true)
	first := relay.Keys().SetIDs()[0]
	if _, err := auth.AddKeys(dir, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := auth.RetireKeys(dir, first, time.Now(), true); err != nil {
		t.Fatal(err)
	}
	relay.ReloadKeys()
	want("afterwards", false)
}
