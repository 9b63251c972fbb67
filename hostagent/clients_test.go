package hostagent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"ahprelay/ahp"
)

// TestPassedOverConnectionResyncs fails unless a connection that missed the host's messages,
// because the host sent them to a later connection with the same clientId, is closed when
// the later one ends, before the host turns to it again. A connection that missed nothing
// stays.
func TestPassedOverConnectionResyncs(t *testing.T) {
	const reason = "resync: another connection with this clientId got the host's messages, and has ended"
	action := func(seq int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/x"},"serverSeq":%d}}`, seq)
	}
	ask := `{"jsonrpc":"2.0","id":1,"method":"resourceRead","params":{"uri":"file:///x"}}`
	for _, tt := range []struct {
		name   string
		tells  string // the host, to the later connection
		misses bool
	}{{"a notification", action(2), true}, {"a request", ask, true}, {"nothing", "", false}} {
		t.Run(tt.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				live := w.initializes("phone")
				toLive := w.hostSide()
				toLive.toUs <- action(1)
				late := w.resumes("phone")
				toLate := w.hostSide()
				if tt.tells != "" {
					toLate.toUs <- tt.tells
				}
				synctest.Wait()
				w.wantOpen(live, late)
				late.conn.Close(ahp.CloseShuttingDown, "")
				synctest.Wait()
				if !toLate.isClosed() {
					t.Fatal("the host still has the later connection")
				}
				toLive.toUs <- action(3)
				got, _ := live.said()
				if strings.Contains(got, action(3)) == tt.misses {
					t.Errorf("the connection has %s; the message after those that it missed is among them: %v", got, !tt.misses)
				}
				if tt.misses {
					live.wantClosed(ahp.CloseResync, reason)
				} else {
					w.wantOpen(live)
				}
			})
		})
	}
}

// TestLeavingConnectionDisturbsNoLaterOne fails if the end of a client's earlier connection closes its
// later one: the client has changed networks.
func TestLeavingConnectionDisturbsNoLaterOne(t *testing.T) {
	inWorld(t, func(w *world) {
		early := w.initializes("phone")
		w.hostSide().toUs <- `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/x"},"serverSeq":1}}`
		late := w.resumes("phone")
		early.conn.Close(ahp.CloseShuttingDown, "")
		synctest.Wait()
		w.wantOpen(late)
	})
}
