package hostagent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/routing"
)

// TestFlushedViewerLeavesItsCrowd flushes a viewer's messages, as a relay does that stops. The
// answer must follow the crowd's messages, so the viewer must leave its crowd before it, and enter
// it again afterwards.
func TestFlushedViewerLeavesItsCrowd(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		v, other := w.join(), w.join()
		w.say(5)
		v.hear()
		v.conn.Flush()
		if frames := v.take(); len(frames) != 1 || frames[0][0] != sealedRecord {
			t.Fatalf("the viewer gets %d frames; want the record of its leave", len(frames))
		} else if err := v.hears(frames); err != nil {
			t.Fatal(err)
		}
		w.say(5)
		w.heardAll(v, 0)
		w.heardAll(other, 0)
		if now := w.crowds(); now[0] == nil || now[0] != now[1] {
			t.Error("the viewer is not in its crowd again")
		}
	})
}

// moves lets the viewer's relay stop in order, and the viewer continue at a different relay. The
// host sends actions before, during and after each step. The function change may change the frames
// that the viewer gets from its first relay from the beginning of the move, and those that it gets
// from the second. The result is the error of the first frame that the viewer refuses.
func (v *looker) moves(w *lookWorld, to *routing.RelayEnd, change func(former, next [][]byte) [][]byte) error {
	w.Helper()
	v.hear()
	ticket := fmt.Sprint("ticket-", len(w.sent))
	w.say(2)
	v.conn.Move(routing.Move{Ticket: ticket, Until: time.Now().Add(time.Hour), Holder: auth.Holder{Token: "t"}})
	w.say(2)
	v.conn.Close(ahp.CloseShuttingDown, "")
	w.say(2)
	next := &sealedRemote{w: v.w, session: v.session, device: v.device}
	var err error
	if next.conn, err = to.Open(routing.Open{ID: ticket, Subject: "eve", Access: "admin", Sealed: true, Ticket: ticket}, next); err != nil {
		w.Fatal(err)
	}
	w.say(4)
	frames := change(v.take(), next.take())
	v.sealedRemote = next
	return v.hears(frames)
}

// inOrder is a function for moves that changes nothing.
func inOrder(former, next [][]byte) [][]byte { return append(former, next...) }

// TestCrowdSurvivesARelaysRestart lets a relay with three viewers stop in order, while the host
// sends actions. Each viewer must get all actions once and in order on the same keys, and enter a
// crowd at the next relay. A snapshot that it gets there must open.
func TestCrowdSurvivesARelaysRestart(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		w.state = `{"text":"` + strings.Repeat("state ", 2000) + `"}`
		viewers := []*looker{w.join(), w.join(), w.join()}
		w.say(5)
		second := w.world.link(w.life, "relay2")
		for i, v := range viewers {
			if err := v.moves(w, second, inOrder); err != nil {
				t.Fatalf("viewer %d: %v", i, err)
			}
		}
		w.say(5)
		for i, v := range viewers {
			v.own = 0
			w.heardAll(v, 0)
			if crowd := w.crowds()[i]; crowd == nil || crowd != w.crowds()[0] || v.own != 0 {
				t.Errorf("viewer %d is not in the crowd of the others, and received %d actions of its own", i, v.own)
			}
		}
		v := viewers[2]
		v.rest = nil
		v.says(`{"jsonrpc":"2.0","id":7,"method":"subscribe","params":{"channel":"s:/1"}}`)
		time.Sleep(time.Second)
		w.say(3)
		w.heardAll(v, 0)
		if len(v.rest) != 1 || !strings.Contains(v.rest[0], w.state) || v.sizes[7] == 0 {
			t.Errorf("after the move, a snapshot of %d shared bytes arrives as %.60q", v.sizes[7], v.rest)
		}
		w.heardAll(viewers[0], 0)
	})
}

// TestMoveHidesNoLieToACrowd has a relay lie to a viewer in a crowd around a restart. The viewer
// must refuse the frames, and may have got the first actions only.
func TestMoveHidesNoLieToACrowd(t *testing.T) {
	told := func(f [][]byte) (at []int) {
		for i := range f {
			if f[i][0] == sealedTold {
				at = append(at, i)
			}
		}
		return at
	}
	for name, lie := range map[string]func(former, next [][]byte) [][]byte{
		"withholds the last message": func(former, next [][]byte) [][]byte {
			last := told(former)
			i := last[len(last)-1]
			return append(slices.Delete(former, i, i+1), next...)
		},
		"withholds the leave": func(former, next [][]byte) [][]byte { return append(former[:len(former)-1], next...) },
		"withholds the last message and the leave": func(former, next [][]byte) [][]byte {
			return append(former[:len(former)-2], next...)
		},
		"withholds all behind the move's beginning": func(_, next [][]byte) [][]byte { return next },
		"withholds the kept messages": func(former, next [][]byte) [][]byte {
			return append(former, next[1:]...)
		},
		"repeats a message outside of the crowd": func(former, next [][]byte) [][]byte {
			return slices.Concat(former, former[:1], next)
		},
		"repeats a message in the next crowd": func(former, next [][]byte) [][]byte {
			i := told(next)[0]
			return slices.Concat(former, next[:i], former[:1], next[i:])
		},
		"withholds the entrance": func(former, next [][]byte) [][]byte {
			i := told(next)[0]
			return slices.Concat(former, next[:i-1], next[i:])
		},
		"withholds a message in the next crowd": func(former, next [][]byte) [][]byte {
			i := told(next)[0]
			return slices.Concat(former, next[:i], next[i+1:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			inLookWorld(t, func(w *lookWorld) {
				v, other := w.join(), w.join()
				w.say(5)
				err := v.moves(w, w.world.link(w.life, "relay2"), func(former, next [][]byte) [][]byte {
					if former[0][0] != sealedTold || len(told(next)) < 2 {
						t.Fatalf("the viewer got %d frames from the first relay, and %d of the next crowd's", len(former), len(told(next)))
					}
					return lie(slices.Clone(former), slices.Clone(next))
				})
				if err == nil {
					t.Error("the viewer accepts the lie")
				}
				if !slices.Equal(v.got, w.sent[:len(v.got)]) {
					t.Errorf("the viewer got %q", v.got)
				}
				w.heardAll(other, 0)
			})
		})
	}
}
