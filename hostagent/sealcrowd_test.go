package hostagent

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
	"ahprelay/routing/audience"
)

// sealedTold is the kind byte of frames that a whole crowd gets.
const sealedTold = 9

// A lookWorld is a world with a sealed host, and a link that permits to look.
type lookWorld struct {
	*world
	link   *sealed.Device
	state  string // in snapshots
	sent   []string
	joined int
}

// A looker is a viewer who has opened the link.
type looker struct {
	*sealedRemote
	got  []string // the actions that the viewer got, in order
	rest []string // the other messages, such as answers
	told [][]byte
	own  int // how many actions came in frames for this viewer only
}

func inLookWorld(t *testing.T, test func(w *lookWorld)) {
	t.Helper()
	inWorldOf(t, routing.AgentEndConfig{Sealed: true}, func(of *world) {
		w := &lookWorld{world: of, state: "{}"}
		w.seal()
		w.host.set(func() { w.host.answers = w.answer })
		var err error
		if w.link, err = sealed.NewDevice(); err != nil {
			t.Fatal(err)
		}
		w.knows(w.link, vaultDevice{Level: auth.AccessRead, People: 99})
		test(w)
	})
}

// answer answers the host's requests from the viewers' shared connection.
func (w *lookWorld) answer(env ahp.Envelope) string {
	result := `{"items":[]}`
	switch string(env.Method) {
	case "initialize":
		result = `{"protocolVersion":"0.9.0","serverSeq":0,"snapshots":[]}`
	case "subscribe":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"fromSeq":%d,"state":%s}}`, env.Channel, len(w.sent), w.state)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
}

// join connects a viewer with the link. It waits until the viewer has the snapshot of s:/1.
func (w *lookWorld) join() *looker {
	w.Helper()
	w.joined++
	v := &looker{sealedRemote: w.openSealedBy(w.link, sealed.Greeting{Window: 615, Viewer: fmt.Sprintf("%021dA", w.joined)})}
	v.post(sealed.Ask, `{"id":0,"do":"share","parts":true}`)
	v.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c%d","protocolVersions":["0.9.0"],"initialSubscriptions":["s:/1"]}}`, w.joined))
	time.Sleep(time.Second)
	v.hear()
	if len(v.rest) != 1 || !strings.Contains(v.rest[0], `"snapshots":[{`) {
		w.Fatalf("the answers to the viewer's initialize are %q; want one, with a snapshot", v.rest)
	}
	return v
}

// says sends an AHP message from the viewer.
func (v *looker) says(message string) {
	v.w.Helper()
	v.post(sealed.Message, message)
}

// hear decrypts the frames that the viewer got since the last call, and sorts their messages into
// got, rest and told.
func (v *looker) hear() {
	v.w.Helper()
	if err := v.hears(v.take()); err != nil {
		v.w.Fatalf("opening the viewer's frames: %v; want no error", err)
	}
}

// hears decrypts and sorts these frames like hear, and returns the first error.
func (v *looker) hears(frames [][]byte) error {
	for _, frame := range frames {
		kind := frame[0]
		if kind == sealedTold {
			v.told = append(v.told, bytes.Clone(frame))
		}
		content, body, done, err := v.session.Open(bytes.Clone(frame))
		if err != nil {
			return err
		}
		for ; done; content, body, done = v.session.Next() {
			switch {
			case content != sealed.Message:
			case !strings.Contains(string(body), `"action"`):
				v.rest = append(v.rest, string(body))
			default:
				v.got = append(v.got, string(body))
				if kind == sealedRecord {
					v.own++
				}
			}
		}
	}
	return nil
}

// say makes the host send n actions on the newest connection, and waits for their delivery.
func (w *lookWorld) say(n int) {
	w.Helper()
	socks := w.host.all()
	for range n {
		w.sent = append(w.sent, fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","serverSeq":%d,"action":{"type":"chat/delta"}}}`, len(w.sent)+1))
		socks[len(socks)-1].toUs <- w.sent[len(w.sent)-1]
		time.Sleep(10 * time.Millisecond)
	}
	synctest.Wait()
}

// heardAll fails unless the viewer got all actions of the host from the number from on, in order.
func (w *lookWorld) heardAll(v *looker, from int) {
	w.Helper()
	v.hear()
	if !slices.Equal(v.got, w.sent[from:]) {
		w.Fatalf("a viewer received %d actions; want %d, in order: %q", len(v.got), len(w.sent)-from, v.got)
	}
}

// crowds returns the crowd of each viewer at the host-agent, or nil for a viewer outside any crowd.
func (w *lookWorld) crowds() (in []*viewerCrowd) {
	for _, c := range w.agent.clients.every() {
		in = append(in, c.conn.seal.crowd.Load())
	}
	return in
}

// TestViewersOfALinkAreToldTogether sends actions to five viewers. All viewers must get the same
// encrypted frames in order, and almost nothing in frames of their own.
func TestViewersOfALinkAreToldTogether(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		var viewers []*looker
		for range 5 {
			viewers = append(viewers, w.join())
		}
		w.say(30)
		for _, v := range viewers {
			w.heardAll(v, 0)
			if v.own > 1 || len(v.told) < 29 {
				t.Errorf("a viewer received %d actions in messages of its own, and %d in the crowd's messages; want at most 1, and at least 29", v.own, len(v.told))
			}
			if last := len(v.told) - 29; !slices.EqualFunc(v.told[last:], viewers[0].told[len(viewers[0].told)-29:], bytes.Equal) {
				t.Error("two viewers in a crowd received different bytes; want the same")
			}
		}
		for _, c := range w.agent.clients.every() {
			if heard := time.Since(c.lastHeard()); heard > 10*time.Millisecond {
				t.Errorf("a viewer's connection counts as silent for %v, though the host has just sent; want at most 10 ms", heard)
			}
		}
		if n := w.host.dials; n != 2 { // the monitor's
			t.Errorf("the host has %d connections; want one for all", n-1)
		}
	})
}

// TestViewerJoinsInFewBytes has a second viewer join a session with a long state, until it is in the
// crowd. All its frames but the shared state must have at most 248 bytes. A link adds less than half
// as much for records and packets.
func TestViewerJoinsInFewBytes(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		w.state = `{"text":"` + strings.Repeat("state ", 2000) + `"}`
		w.join()
		v := w.join()
		w.say(1)
		shared, own := v.sizes[7], 0
		for kind, size := range v.sizes[:sealedTold] {
			if kind != 7 {
				own += size
			}
		}
		if shared == 0 || own > 248 {
			t.Errorf("a viewer joins with %d bytes of its own and %d of shared state, by kind of frame %v; want at most 248 of its own", own, shared, v.sizes)
		}
		if now := w.crowds(); now[0] == nil || now[0] != now[1] {
			t.Error("the viewers are not in a crowd")
		}
		w.heardAll(v, 0)
	})
}

// TestViewerKeepsItsOrderAroundItsCrowd has viewers join and send requests while the host sends
// actions. Each viewer must get every action once and in order, and every answer. In the end, all
// must be in the same crowd.
func TestViewerKeepsItsOrderAroundItsCrowd(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		first, second := w.join(), w.join()
		w.say(10)
		late := w.join()
		from := len(w.sent)
		for i := range 8 {
			w.say(3)
			second.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"channel":"ahp-root://"}}`, i+5))
			w.say(2)
			late.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"fetchTurns","params":{"channel":"s:/1","cursor":%d}}`, i+5, i))
			w.say(3)
		}
		w.heardAll(first, 0)
		w.heardAll(second, 0)
		w.heardAll(late, from)
		if len(second.rest) != 9 || len(late.rest) != 9 {
			t.Errorf("the viewers received %d and %d answers to their own requests; want 9 each", len(second.rest), len(late.rest))
		}
		for _, c := range w.crowds() {
			if c == nil || c != w.crowds()[0] {
				t.Error("a viewer is not in the crowd of the first viewer; want one crowd")
			}
		}
	})
}

// TestNarrowerViewersJudgeNoCrowd lets a holder of a link admit itself with a grant for a different
// channel. All viewers subscribe to the list of sessions, and the host changes the link's session. The
// viewers with the link's own authority must get the change: the gates of the narrower viewer, which may
// not see the session, must not judge for them. The narrower viewer must not get the change.
func TestNarrowerViewersJudgeNoCrowd(t *testing.T) {
	for order := range 2 { // the first viewer of a crowd judges for it
		inLookWorld(t, func(w *lookWorld) {
			w.agent.seals.vault.state.Devices[0].Channels = []string{"s:/1"}
			narrow := newDevice(t)
			now := time.Now()
			grant, err := w.link.SignGrant(w.agent.seals.secret.Public(), sealed.Grant{
				Device: narrow.Identity(), Subject: "ada", Level: auth.AccessRead, Channels: []string{"s:/2"}, From: now, End: now.Add(time.Hour), Serial: sealed.Fingerprint{1}.String(),
			})
			if err != nil {
				t.Fatal(err)
			}
			come := func(device *sealed.Device, grants ...string) *looker {
				w.joined++
				v := &looker{sealedRemote: w.openSealedBy(device, sealed.Greeting{Window: 615, Viewer: fmt.Sprintf("%021dA", w.joined), Grants: grants})}
				v.post(sealed.Ask, `{"id":0,"do":"share","parts":true}`)
				v.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c%d","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"]}}`, w.joined))
				time.Sleep(time.Second)
				return v
			}
			var other *looker
			if order == 0 {
				other = come(narrow, grant)
			}
			viewers := []*looker{come(w.link), come(w.link)}
			if order == 1 {
				other = come(narrow, grant)
			}
			const change = `{"jsonrpc":"2.0","method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"s:/1","changes":{"status":8}}}`
			count := func(v *looker) (n int) {
				v.hear()
				for _, m := range v.rest {
					if m == change {
						n++
					}
				}
				return n
			}
			for range 5 {
				for _, sock := range w.host.all()[1:] { // the first is the monitor's
					sock.toUs <- change
				}
				time.Sleep(time.Second)
			}
			for i, v := range viewers {
				if n := count(v); n != 5 {
					t.Errorf("order %d: viewer %d of the link got %d changes of its session; want 5", order, i, n)
				}
			}
			if n := count(other); n != 0 {
				t.Errorf("order %d: the narrower viewer got %d changes of a session that it may not see; want 0", order, n)
			}
		})
	}
}

// TestOtherSubscriptionsAreAnotherCrowd has a viewer unsubscribe and subscribe again. The viewer
// must get no actions while it is unsubscribed, and all actions later.
func TestOtherSubscriptionsAreAnotherCrowd(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		first, second := w.join(), w.join()
		w.say(5)
		second.says(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"s:/1"}}`)
		w.say(5)
		w.heardAll(first, 0)
		second.hear()
		if !slices.Equal(second.got, w.sent[:5]) {
			t.Fatalf("the viewer without a subscription received %d actions; want 5", len(second.got))
		}
		second.got = nil
		second.says(`{"jsonrpc":"2.0","id":3,"method":"subscribe","params":{"channel":"s:/1"}}`)
		time.Sleep(time.Second)
		from := len(w.sent)
		w.say(5)
		w.heardAll(first, 0)
		w.heardAll(second, from)
	})
}

// TestCrowdsKeysEndWithAViewer ends a viewer's connection. The other viewers must get new keys
// within leftTime, or at once if the viewer was removed.
func TestCrowdsKeysEndWithAViewer(t *testing.T) {
	for name, end := range map[string]func(w *lookWorld, v *looker){
		"left":    func(_ *lookWorld, v *looker) { v.conn.Close(ahp.CloseShuttingDown, "") },
		"removed": func(w *lookWorld, _ *looker) { w.agent.clients.every()[0].conn.Abort(ahp.CloseTokenEnded, "") },
	} {
		inLookWorld(t, func(w *lookWorld) {
			viewers := []*looker{w.join(), w.join(), w.join()}
			w.say(5)
			before := w.crowds()[0].keys
			end(w, viewers[2])
			synctest.Wait()
			w.say(1)
			if now := w.crowds()[0]; name == "removed" && now != nil && now.keys == before {
				t.Errorf("%s: the remaining viewers have the keys from before the removal; want new ones", name)
			}
			time.Sleep(leftTime)
			w.say(3)
			for i, c := range w.crowds() {
				if i < 2 && (c == nil || c.keys == before) {
					t.Errorf("%s: the remaining viewers have the old keys, or no crowd: %v; want new keys", name, c)
				}
			}
			if name == "left" {
				w.heardAll(viewers[0], 0)
				w.heardAll(viewers[1], 0)
			}
		})
	}
}

// TestCrowdHasOneHeartbeat has a host that sends nothing for a while. Each viewer must get the
// crowd's heartbeats, and none of its own.
func TestCrowdHasOneHeartbeat(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		viewers := []*looker{w.join(), w.join()}
		w.say(5)
		for _, v := range viewers {
			v.hear()
			before, told := v.session.Opened(), len(v.told)
			time.Sleep(4 * sealed.Beat)
			v.hear()
			if own, beats := v.session.Opened()-before, len(v.told)-told; own != 0 || beats != 4 {
				t.Errorf("a viewer received %d heartbeats of its own, and %d of the crowd; want none and 4", own, beats)
			}
		}
	})
}

// TestClosedViewerLearnsWhy closes a viewer in a crowd. This viewer must get all earlier actions,
// and then the close in its sealed stream.
func TestClosedViewerLearnsWhy(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		viewers := []*looker{w.join(), w.join()}
		w.say(5)
		w.agent.clients.every()[0].conn.Close(ahp.CloseForbidden, kickedReason)
		synctest.Wait()
		closed := 0
		for _, v := range viewers {
			gone := false
			for _, frame := range v.take() {
				content, body, done, err := v.session.Open(frame)
				if err != nil {
					t.Fatal(err)
				}
				for ; done; content, body, done = v.session.Next() {
					if content == sealed.Close {
						closed++
						gone = true
					} else if content == sealed.Message && gone && bytes.Contains(body, []byte("action")) {
						t.Error("a viewer received an action after its close; want none")
					}
				}
			}
		}
		if closed != 1 {
			t.Errorf("%d viewers were closed; want one", closed)
		}
	})
}

// TestRefusedActionIsRejectedAtTheCrowdsSeq has each viewer in a crowd dispatch an action, while the
// crowd judges a further action. Each echo must have the serverSeq of the last action that the
// viewer got. With a lower number, the viewer drops the echo as old; with a higher number, it drops
// the next action.
func TestRefusedActionIsRejectedAtTheCrowdsSeq(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		viewers := []*looker{w.join(), w.join(), w.join()}
		w.say(5)
		next := []byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","serverSeq":6,"action":{"type":"chat/delta"}}}`)
		env, err := ahp.Peek(next)
		if err != nil {
			t.Fatal(err)
		}
		if v := w.crowds()[0].Judge(next, &env); v != audience.ToAll {
			t.Fatalf("the action gets the verdict %d; want %d", v, audience.ToAll)
		}
		for i, v := range viewers {
			v.hear()
			v.got = nil
			v.says(fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"s:/1","clientSeq":%d,"action":{"type":"chat/draftChanged","text":"x"}}}`, i))
			synctest.Wait()
			v.hear()
			if len(v.got) != 1 || !strings.Contains(v.got[0], `"serverSeq":5,`) {
				t.Errorf("viewer %d: the echo is %q; want serverSeq 5", i, v.got)
			}
		}
	})
}

// TestViewersReadWhatTheHostNamesInACrowd names a file's earlier content in an action for a crowd.
// Each viewer may then read that content.
func TestViewersReadWhatTheHostNamesInACrowd(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		viewers := []*looker{w.join(), w.join(), w.join()}
		w.say(5)
		const blob = "session-db:/w/a.txt"
		socks := w.host.all()
		socks[len(socks)-1].toUs <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/1","serverSeq":6,"action":{"type":"changeset/contentChanged","files":[{"id":"x","edit":{"before":{"uri":"file:///w/a.txt","content":{"uri":%q}}}}]}}}`, blob)
		synctest.Wait()
		for i, v := range viewers {
			v.hear()
			v.rest = nil
			v.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"resourceRead","params":{"channel":"ahp-root://","uri":%q}}`, blob))
			time.Sleep(time.Second)
			v.hear()
			if len(v.rest) != 1 || !strings.Contains(v.rest[0], `"result"`) {
				t.Errorf("the answers to viewer %d are %q; want one result", i, v.rest)
			}
		}
	})
}

// TestCrowdForgetsViewersThatAreGone has viewers leave a crowd while the host is silent. The crowd
// must not keep them until the host's next message.
func TestCrowdForgetsViewersThatAreGone(t *testing.T) {
	inLookWorld(t, func(w *lookWorld) {
		w.join()
		viewers := []*looker{w.join(), w.join(), w.join()}
		w.say(5)
		crowd := w.crowds()[0]
		for _, v := range viewers {
			v.says(`{"jsonrpc":"2.0","id":5,"method":"ping","params":{"channel":"ahp-root://"}}`)
			synctest.Wait()
			v.conn.Close(ahp.CloseShuttingDown, "")
			synctest.Wait()
		}
		crowd.mu.Lock()
		defer crowd.mu.Unlock()
		if len(crowd.members) != 1 || len(crowd.left) != 0 {
			t.Errorf("the crowd has %d members, and still lists %d viewers that have left; want 1 and 0", len(crowd.members), len(crowd.left))
		}
	})
}
