package remembering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/remember"
	"ahprelay/hostagent/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world has a Keeper, and a host and a relay in memory, on fake time.
type world struct {
	t      *testing.T
	keeper *Keeper
	dir    string
	stop   func()

	mu      sync.Mutex
	texts   map[string]string // the last message of each session at the host
	reads   map[string]int    // how often each session was read from the host
	records map[string]*remember.Record
	puts    []string // the IDs of written records, in order
	revoked map[string]bool
	sealed  bool  // the next start is that of a sealed host
	away    bool  // requests to the relay fail
	lost    bool  // the relay writes records, but its answers get lost
	refuse  error // the relay refuses to write with this error
	renewed int
	hangs   string // the host never answers about this session
	drop    func() // called when the Keeper drops a record; may be nil
}

func newWorld(t *testing.T, mode Mode) *world {
	w := &world{t: t, dir: t.TempDir(), texts: map[string]string{}, reads: map[string]int{}, records: map[string]*remember.Record{}, revoked: map[string]bool{}}
	w.start(mode)
	return w
}

// start stops the Keeper and starts a new one, as after a restart of the host-agent.
func (w *world) start(mode Mode) {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	cfg := Config{
		Mode: mode, Tenant: "acme", Host: "laptop", Instance: "i", StateDir: w.dir, Dial: w.dial, Log: slog.New(slog.DiscardHandler),
		Renewed: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.renewed++
		},
	}
	if w.sealed {
		cfg.Ended = w.ended
	}
	k, err := New(cfg)
	if err == nil {
		err = k.Reread()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.keeper = k
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx, w.ask) })
	w.stop = func() {
		cancel()
		running.Wait()
	}
}

// ended returns whether a holder's time is over, or something that its right rests on is revoked.
// It replaces the vault of a sealed host.
func (w *world) ended(h *Holder) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !time.Now().Before(h.End) || slices.ContainsFunc(h.Rests, func(on string) bool { return w.revoked[on] })
}

// again restarts the Keeper, and gives it the list of sessions that the previous Keeper had.
func (w *world) again(mode Mode) {
	first := w.keeper.sessions
	w.start(mode)
	w.lists(first)
}

// lists gives the Keeper a complete list of sessions, as from the host.
func (w *world) lists(sessions map[string]*session) {
	for uri, s := range sessions {
		data, _ := json.Marshal(s.summary)
		w.keeper.Summary(uri, data, false)
	}
	w.keeper.Listed()
}

// renewals returns how often the keys were renewed.
func (w *world) renewals() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.renewed
}

// record returns the relay's record with this ID, or nil.
func (w *world) record(id string) *remember.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.records[id]
}

// readsOf returns how often the Keeper has read a session from the host.
func (w *world) readsOf(session string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads[session]
}

// ask answers the Keeper's requests as a relay does.
func (w *world) ask(_ context.Context, data []byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return nil, errors.New("no relay")
	}
	r, err := remember.ReadRequest(data)
	if err != nil {
		w.t.Error(err)
	}
	var answer remember.Answer
	switch r.Op {
	case remember.Put:
		if w.refuse != nil {
			answer.Error = w.refuse.Error()
			break
		}
		w.records[r.Record.ID] = r.Record
		w.puts = append(w.puts, r.Record.ID)
		if w.lost {
			return nil, errors.New("no answer")
		}
	case remember.Get:
		answer.Record = w.records[r.ID]
	case remember.Index:
		answer.IDs = slices.Collect(maps.Keys(w.records))
	case remember.Drop:
		if w.drop != nil {
			w.drop()
		}
		if delete(w.records, r.ID); r.ID == "" {
			clear(w.records)
		}
	case remember.Check:
		if w.sealed {
			w.t.Error("a sealed host names its devices to a relay; want none named")
		}
		for i, h := range r.Holders {
			if w.revoked[h.Device] {
				answer.Removed = append(answer.Removed, i)
			}
		}
	}
	body, err := json.Marshal(answer)
	return body, err
}

// A hostSocket is a connection to the host in memory.
type hostSocket struct {
	world *world
	out   chan string
	once  sync.Once
	done  chan struct{}
}

func (w *world) dial(context.Context) (watch.Socket, error) {
	return &hostSocket{world: w, out: make(chan string, 10), done: make(chan struct{})}, nil
}

func (s *hostSocket) Read() ([]byte, bool, error) {
	select {
	case m := <-s.out:
		return []byte(m), false, nil
	case <-s.done:
		return nil, false, io.EOF
	}
}

func (s *hostSocket) Close(string) { s.once.Do(func() { close(s.done) }) }

func (s *hostSocket) Write(message []byte, _ bool) error {
	env, err := ahp.Peek(message)
	if err != nil || env.Kind != ahp.Request {
		return err
	}
	channel := string(env.Channel)
	session, isChat := strings.CutPrefix(channel, "chat:")
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	result := `{}`
	switch text, known := s.world.texts[session]; {
	case string(env.Method) == "initialize":
	case channel == s.world.hangs:
		return nil
	case !known:
		s.out <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32008,"message":"gone"}}`, env.ID)
		return nil
	case isChat:
		s.world.reads[session]++
		turn, _ := json.Marshal(map[string]any{"id": "t", "responseParts": []any{map[string]string{"content": "first"}, map[string]string{"content": text}}})
		result = fmt.Sprintf(`{"snapshot":{"state":{"title":"T","turns":[%s]}}}`, turn)
	default:
		result = fmt.Sprintf(`{"snapshot":{"state":{"defaultChat":%q}}}`, "chat:"+channel)
	}
	s.out <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, env.ID, result)
	return nil
}

// say changes a session's last message at the host, and reports the change to the Keeper.
func (w *world) say(session, text string, status int) {
	w.mu.Lock()
	w.texts[session] = text
	w.mu.Unlock()
	w.keeper.Summary(session, fmt.Appendf(nil, `{"title":"title of %s","status":%d,"modifiedAt":"%s"}`, session, status, time.Now().Format(time.RFC3339Nano)), false)
}

// count returns how often the Keeper has written the record with this ID.
func (w *world) count(id string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, put := range w.puts {
		if put == id {
			n++
		}
	}
	return n
}

// content decrypts a record at the relay with the Keeper's current keys. It returns "" without a
// record.
func (w *world) content(id string) string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	vault := w.keeper.keys.current()
	if w.records[id] == nil {
		return ""
	}
	data, err := vault.Open(&vault.Signer.PublicKey, w.records[id])
	if err != nil {
		w.t.Errorf("opening the record %s: %v; want no error", id, err)
	}
	return string(data)
}

var all = gate.NewPolicy(auth.AccessWrite, nil, nil, false)

// TestWritesArePaced changes a session every second. The Keeper must write its record about once
// per writeEvery, and nothing while the session does not change.
func TestWritesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		id := remember.IDOf("s:/1")
		for i := range 100 {
			w.say("s:/1", fmt.Sprint("words ", i), 1)
			time.Sleep(time.Second)
		}
		if n := w.count(id); n < 8 || n > 11 {
			t.Errorf("the keeper wrote a changing session %d times in 100 s; want 8 to 11", n)
		}
		before := w.count(id)
		for i := range 30 { // after each change, the session is unchanged for longer than settleTime
			w.say("s:/1", fmt.Sprint("slow words ", i), 1)
			time.Sleep(settleTime + time.Second)
		}
		if n := w.count(id) - before; n < 7 || n > 10 {
			t.Errorf("the keeper wrote a slowly changing session %d times in 90 s; want 7 to 10", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.content(id); !strings.Contains(got, "slow words 29") {
			t.Errorf("the record is %s; want the session's last text", got)
		}
		n, lists, reads := w.count(id), w.count(remember.ListID), w.reads["s:/1"]
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if w.count(id) != n || w.count(remember.ListID) != lists || w.reads["s:/1"] != reads {
			t.Error("the keeper read or wrote an unchanged session; want neither")
		}
	})
}

// TestRunningTurnIsWritten has a session with a running turn. The Keeper must read it repeatedly,
// and write its record only when the turn has grown.
func TestRunningTurnIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "begins", 8)
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		w.texts["s:/1"] = "has grown"
		w.mu.Unlock()
		time.Sleep(workingEvery)
		synctest.Wait()
		id := remember.IDOf("s:/1")
		if got := w.content(id); !strings.Contains(got, "has grown") {
			t.Errorf("the record is %s; want the turn's grown text", got)
		}
		n := w.count(id)
		time.Sleep(10 * workingEvery)
		synctest.Wait()
		if w.count(id) != n {
			t.Errorf("the keeper wrote the same content %d more times; want 0", w.count(id)-n)
		}
	})
}

// TestFlushWritesAtOnce changes a session and calls Flush, as before the machine sleeps. The record
// must hold the change when Flush returns.
func TestFlushWritesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		time.Sleep(time.Second)
		w.say("s:/1", "one", 1)
		time.Sleep(3 * time.Second)
		w.say("s:/1", "the last words", 1)
		w.keeper.Flush(t.Context())
		if got := w.content(remember.IDOf("s:/1")); !strings.Contains(got, "the last words") {
			t.Errorf("the record is %s; want the session's last text", got)
		}
		if got := w.content(remember.ListID); !strings.Contains(got, "title of s:/1") {
			t.Errorf("the list is %s; want the title of s:/1", got)
		}
	})
}

// TestStateWaitsForTheRelay changes a session while the relay does not answer or refuses. When the
// relay accepts again, the Keeper must write the session's state.
func TestStateWaitsForTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		set := func(away bool, refuse error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.away, w.refuse = away, refuse
		}
		set(true, nil)
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		time.Sleep(time.Hour)
		set(false, errors.New("the quota is used up"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(w.records); n != 0 {
			t.Fatalf("%d records at a relay that does not answer or refuses; want none", n)
		}
		set(false, nil)
		time.Sleep(mostRetry)
		synctest.Wait()
		if got := w.content(remember.IDOf("s:/1")); !strings.Contains(got, "one") {
			t.Errorf("the record is %s; want the text one", got)
		}
	})
}

// TestRestartWritesNothingAgain restarts the Keeper. The new Keeper must read and write only the
// session that has changed, with a higher version, and drop the record of a removed session.
func TestRestartWritesNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		w.say("s:/2", "two", 1)
		w.say("s:/3", "three", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		first, reads := w.keeper.sessions, w.reads["s:/1"]
		before := w.records[remember.IDOf("s:/2")].Version
		w.start(Turns)
		for _, uri := range []string{"s:/1", "s:/2"} { // s:/3 was removed during the restart
			data, _ := json.Marshal(first[uri].summary)
			w.keeper.Summary(uri, data, false)
		}
		w.keeper.Listed()
		w.say("s:/2", "changed", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.reads["s:/1"] != reads || w.count(remember.IDOf("s:/1")) != 1 {
			t.Error("the keeper read or wrote an unchanged session after its restart; want neither")
		}
		if r := w.records[remember.IDOf("s:/2")]; r.Version <= before {
			t.Errorf("the changed session's record has version %d; want a version above %d", r.Version, before)
		}
		if w.records[remember.IDOf("s:/3")] != nil || strings.Contains(w.content(remember.ListID), "s:/3") {
			t.Error("a removed session has a record, or is in the list; want neither")
		}
	})
}

// TestSuccessorWaitsToWriteItsKeys makes a Keeper for a host that another host-agent still has, and that may
// change the file with the keys at any moment. The new Keeper must not write the file before it has the host.
func TestSuccessorWaitsToWriteItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		path := filepath.Join(w.dir, FileName("acme", "laptop"))
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(w.keeper.cfg); err != nil {
			t.Fatal(err)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
			t.Errorf("a Keeper that has not got the host changed the file with the keys, %v; want it unchanged", err)
		}
	})
}

// TestKeysFromACopyWriteLaterVersions restarts the host-agent with an older copy of its file, as from a backup.
// The records of the copy's keys must get higher versions than the stored ones: relays refuse others.
func TestKeysFromACopyWriteLaterVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		path, id := filepath.Join(w.dir, FileName("acme", "laptop")), remember.IDOf("s:/1")
		copied, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write := func(text string) (version uint64) {
			w.keeper.Listed()
			w.say("s:/1", text, 1)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := w.content(id); !strings.Contains(got, text) {
				t.Errorf("the record is %s; want %q", got, text)
			}
			return w.record(id).Version
		}
		write("first")
		for range 3 {
			w.start(Turns)
		}
		latest := write("latest")
		if err := os.WriteFile(path, copied, 0o600); err != nil {
			t.Fatal(err)
		}
		w.start(Turns)
		if version := write("after the restore"); version <= latest {
			t.Errorf("with the file from a backup, the record has version %d; want a version above %d", version, latest)
		}
	})
}

// TestRemovedDeviceRenewsTheKeys removes a device that got the keys. Within checkEvery, the Keeper
// must write all records with a new key, without reading the host. The removal of a device that
// never got the keys must change nothing.
func TestRemovedDeviceRenewsTheKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		w.say("s:/2", "two", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		phone := Holder{Holder: auth.Holder{Device: "phone", Subject: "ada", At: time.Now()}}
		given, err := w.keeper.Keys(all, phone)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.revoked["stranger"] = true
		w.mu.Unlock()
		time.Sleep(2 * checkEvery)
		synctest.Wait()
		if got, _ := w.keeper.Keys(all, phone); got.KeyID != given.KeyID || w.renewals() != 0 {
			t.Error("the keys changed after the removal of a device that had none; want the same keys")
		}
		reads := w.reads["s:/1"]
		w.mu.Lock()
		w.revoked["phone"] = true
		w.mu.Unlock()
		w.again(Turns) // the list of holders is kept across a restart
		time.Sleep(checkEvery + time.Minute)
		synctest.Wait()
		vault := w.keeper.keys.current()
		if vault.KeyID() == given.KeyID || w.renewals() != 1 {
			t.Fatal("the removal of a device with keys has not renewed the keys; want one renewal")
		}
		for id, r := range w.records {
			if r.Key != vault.KeyID() {
				t.Errorf("record %.8s is encrypted with the previous key; want the new one", id)
			}
		}
		if w.reads["s:/1"] != reads || !strings.Contains(w.content(remember.IDOf("s:/1")), "one") {
			t.Error("the keeper read sessions from the host to renew the keys, or changed their content; want neither")
		}
	})
}

// TestKeysFollowAuthority requests keys with different policies. A client must get the keys of
// exactly the sessions that it may read.
func TestKeysFollowAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		for _, uri := range []string{"s:/1", "s:/2", "other:/1"} {
			w.say(uri, "", 1)
		}
		w.keeper.Listed()
		for _, c := range []struct {
			policy gate.Policy
			whole  bool
			want   []string
		}{
			{all, true, nil},
			{gate.NewPolicy(auth.AccessRead, nil, nil, false), true, nil},
			{gate.NewPolicy(auth.AccessRead, []string{"s:/*"}, nil, false), false, []string{"s:/1", "s:/2"}},
			{gate.NewPolicy(auth.AccessRead, []string{"s:/2"}, nil, false), false, []string{"s:/2"}},
			{gate.NewPolicy(auth.AccessWrite, nil, []string{"dispatchAction"}, false), false, nil},
			{all.Narrow(gate.NewPolicy(auth.AccessRead, []string{"other:/1"}, nil, false)), false, []string{"other:/1"}},
			{gate.Policy{}, false, nil},
		} {
			given, err := w.keeper.Keys(c.policy, Holder{Holder: auth.Holder{Subject: "ada"}})
			if err != nil {
				t.Fatal(err)
			}
			vault := w.keeper.keys.current()
			if (given.Key != nil) != c.whole || len(given.Records) != len(c.want) {
				t.Errorf("a client with the policy %+v gets the keys %+v; want whole %v, and %v", c.policy, given, c.whole, c.want)
			}
			for _, uri := range c.want {
				id := remember.IDOf(uri)
				if string(given.Records[id]) != string(vault.RecordKey(id)) {
					t.Errorf("the keys for %+v lack the record key for %s", c.policy, uri)
				}
			}
		}
	})
}

// TestEndOfLongConversationStays shortens conversations above remember.MaxContent. The end of the
// conversation must stay.
func TestEndOfLongConversationStays(t *testing.T) {
	turn := func(size int) json.RawMessage {
		data, _ := json.Marshal(map[string]any{"id": "t", "responseParts": []any{
			map[string]string{"content": strings.Repeat("a", size)}, map[string]string{"content": "the end"}}})
		return data
	}
	for name, c := range map[string]content{
		"many turns":   {State: chatState{Turns: slices.Repeat([]json.RawMessage{turn(1000)}, 1000)}},
		"long turns":   {State: chatState{Turns: slices.Repeat([]json.RawMessage{turn(50 << 10)}, 10)}},
		"one turn":     {State: chatState{Turns: []json.RawMessage{turn(1 << 20)}}},
		"running turn": {State: chatState{Turns: []json.RawMessage{turn(10)}, Active: turn(1 << 20)}},
	} {
		data, err := c.fit()
		if err != nil || len(data) > remember.MaxContent || !strings.Contains(string(data), "the end") {
			t.Errorf("%s: the record has %d bytes, %v; want the conversation's end in at most %d", name, len(data), err, remember.MaxContent)
		}
	}
}

// TestEndedHolderIsCheckedAfterAnError ends the token of a client with the keys while no relay
// answers. When a relay answers again, the Keeper must check its holders at the next attempt, not
// only after checkEvery.
func TestEndedHolderIsCheckedAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		time.Sleep(checkEvery + time.Second)
		if _, err := w.keeper.Keys(all, Holder{Holder: auth.Holder{Device: "phone", Subject: "ada", At: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.revoked["phone"], w.away = true, true
		w.mu.Unlock()
		w.keeper.HolderEnded()
		synctest.Wait()
		w.mu.Lock()
		w.away = false
		w.mu.Unlock()
		time.Sleep(2 * firstRetry)
		synctest.Wait()
		if n := w.renewals(); n != 1 {
			t.Errorf("the keys were renewed %d times soon after the relay answers again; want once", n)
		}
	})
}

// TestSessionThatReturnsIsWrittenAgain removes a session whose record an earlier Keeper has
// written, and lets the unchanged session return: after the Keeper has dropped the record, and
// while it does. The Keeper must write the record again.
func TestSessionThatReturnsIsWrittenAgain(t *testing.T) {
	for name, during := range map[string]bool{"after": false, "during": true} {
		t.Run(name, func(t *testing.T) { testReturn(t, during) })
	}
}

func testReturn(t *testing.T, during bool) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.say("s:/1", "one", 1)
		time.Sleep(time.Minute)
		w.again(Turns)
		time.Sleep(time.Minute)
		synctest.Wait()
		id := remember.IDOf("s:/1")
		summary, err := json.Marshal(w.keeper.sessions["s:/1"].summary)
		if err != nil {
			t.Fatal(err)
		}
		back := func() { w.keeper.Summary("s:/1", summary, false) }
		if during {
			w.drop, back = back, func() {}
		}
		w.keeper.Summary("s:/1", nil, false)
		synctest.Wait()
		if w.record(id) != nil {
			t.Error("the removed session has a record; want none")
		}
		back()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.content(id); !strings.Contains(got, "one") {
			t.Errorf("the record of the session that returned is %q; want its text", got)
		}
	})
}

// TestUnconfirmedRecordIsDropped loses the relay's answer to a session's first record. When the
// session then ends or becomes private, the Keeper must drop the record.
func TestUnconfirmedRecordIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.lost = true
		w.mu.Unlock()
		w.say("s:/1", "secret", 1)
		for w.record(remember.IDOf("s:/1")) == nil {
			time.Sleep(time.Second)
		}
		w.keeper.Summary("s:/1", nil, false)
		w.mu.Lock()
		w.lost = false
		w.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.record(remember.IDOf("s:/1")) != nil {
			t.Error("the relay still has the record; want none")
		}
	})
}

// TestSessionThatCannotBeReadDelaysNoOther has a session about which the host never answers. The
// Keeper must write the older sessions and the list, and the session once the host answers.
func TestSessionThatCannotBeReadDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Turns)
		defer func() { w.stop() }()
		w.keeper.Listed()
		w.hangs = "s:/2"
		w.say("s:/1", "before", 1)
		time.Sleep(settleTime + time.Second)
		w.say("s:/1", "one", 1)
		time.Sleep(time.Second)
		w.say("s:/2", "two", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.content(remember.IDOf("s:/1")); !strings.Contains(got, "one") {
			t.Errorf("the record of the other session is %q; want its text", got)
		}
		if got := w.content(remember.ListID); !strings.Contains(got, "title of s:/2") {
			t.Errorf("the list is %q; want both titles", got)
		}
		w.mu.Lock()
		w.hangs = ""
		w.mu.Unlock()
		time.Sleep(2 * workingEvery)
		synctest.Wait()
		if got := w.content(remember.IDOf("s:/2")); !strings.Contains(got, "two") {
			t.Errorf("the record of the session is %q after the host answers again; want its text", got)
		}
	})
}

// TestStatusInAnyNotation reads the bits of a session's status. A host may write them as floating point.
func TestStatusInAnyNotation(t *testing.T) {
	for raw, want := range map[string]int64{"24": 24, "24.0": 24, "2.4e1": 24, "null": 0, `"24"`: 0, "": 0} {
		summary := map[string]json.RawMessage{}
		if raw != "" {
			summary["status"] = json.RawMessage(raw)
		}
		if got := status(summary); got != want {
			t.Errorf("the status %s has the bits %d; want %d", raw, got, want)
		}
	}
}
