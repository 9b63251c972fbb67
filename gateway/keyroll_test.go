package gateway

import (
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
