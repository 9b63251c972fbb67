package gateway

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/waiting"
	waitingapi "ahprelay/gateway/api/waiting"
	keeping "ahprelay/gateway/waiting"
	"ahprelay/hostagent"
	"ahprelay/hostagent/remembering"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

// crashed writes the journal that a crashed host-agent leaves, with the stage of each
// item.
func (l *laptop) crashed(stages map[int]waitbook.Stage, expires map[int]int64) {
	l.t.Helper()
	book, err := waitbook.Open(l.state, "default", "laptop", false)
	if err != nil {
		l.t.Fatal(err)
	}
	for i, stage := range stages {
		e := waitbook.Entry{Stage: stage, Version: 1, Expires: time.Now().Add(time.Hour).UnixMilli()}
		if expires[i] != 0 {
			e.Expires = expires[i]
		}
		if err := book.Write(fmt.Sprintf("%032x", i), e, time.Now()); err != nil {
			l.t.Fatal(err)
		}
	}
}

// A host-agent crashes during the delivery of items. Before it restarts, each item is
// cancelled or changed, expires, or loses its author's level. The restarted host-agent
// sends none of these items, and reports each as unknown or late.
func TestCrashThenChangeSendsNothing(t *testing.T) {
	t.Parallel()
	_, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	created, createdChat := near.newSession("00000002")
	changed, changedChat := near.newSession("00000003")
	busy, busyChat := near.newSession("00000004")
	near.say(busyChat, "turn-busy", "permission")
	await(t, func() bool { return len(pending(near.chat(busyChat))) == 1 })
	w := newWriter(ada)
	laptop.sleep()

	call := pending(near.chat(busyChat))[0]
	approve := waiting.Content{Kind: waiting.Approve, Session: busy, Chat: busyChat, Turn: "turn-busy", Request: call.ToolCallID, Approved: true, Input: digestOf(call)}
	first := func(session, text string) waiting.Content {
		return waiting.Content{Kind: waiting.Session, Session: session, Provider: "demo", Turn: "turn-1", Text: text}
	}
	// brief leaves a message that expires soon, and returns that time. On a busy machine, the message
	// may come too late to the relay, and then gets more time.
	brief := func(id int) (expires int64) {
		for life := time.Second; ; life *= 2 {
			expires = time.Now().Add(life).UnixMilli()
			i := w.item(id, 1, message(session, chat, fmt.Sprint("turn-", id), "hello"), func(i *waiting.Item) { i.Expires = expires })
			if status, said := w.leave(i); status == http.StatusOK {
				return expires
			} else if time.Now().UnixMilli() < expires {
				t.Fatalf("leaving the item %d: HTTP %d %s; want 200", id, status, said)
			}
		}
	}
	cancelled := func(i *waiting.Item) { i.Cancelled = true }
	w.mustLeave(w.item(1, 1, first(created, "hello"), nil))
	w.mustLeave(w.item(1, 2, first(created, "hello"), cancelled))
	w.mustLeave(w.item(2, 1, first(changed, "hello"), nil))
	w.mustLeave(w.item(2, 2, first(changed, "hello again"), nil))
	w.mustLeave(w.item(3, 1, approve, nil))
	w.mustLeave(w.item(3, 2, approve, cancelled))
	w.mustLeave(w.item(4, 1, waiting.Content{Kind: waiting.Stop, Session: session, Chat: chat, Turn: "turn-over"}, nil))
	late := brief(5)
	soon := max(late, brief(6))             // item 6 is not in the journal: never begun
	w.mustLeave(w.item(7, 1, approve, nil)) // its author loses the level, by laptop.change
	laptop.crashed(map[int]waitbook.Stage{
		1: waitbook.Creating, 2: waitbook.Creating, 3: waitbook.Sending, 4: waitbook.Sending, 5: waitbook.Sending, 7: waitbook.Sending,
	}, map[int]int64{5: late})
	await(t, func() bool { return time.Now().UnixMilli() > soon })
	laptop.change = func(cfg *hostagent.Config) { cfg.ApproveOnly = []string{"somebody-else"} }
	laptop.wake()
	w.awaitResults(map[string]string{
		"1": "unknown", "2": "unknown", "3": "unknown", "4": "unknown", "5": "unknown", "6": "late its time was over", "7": "unknown",
	})
	for _, uri := range []string{chat, createdChat, changedChat} {
		if got := near.chat(uri); len(got.Turns) != 0 || got.ActiveTurn != nil {
			t.Errorf("the host's chat is %+v; want no turns", got)
		}
	}
	if len(pending(near.chat(busyChat))) != 1 {
		t.Error("the host got a cancelled approval; want its question open")
	}
}

// Items wait while one author loses the level for them, and another author is removed.
// When the host is back, it refuses the items of the first and gets no item of the
// second.
func TestLeftItemsNeedTheLevelAtDelivery(t *testing.T) {
	t.Parallel()
	_, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	busy, busyChat := near.newSession("00000002")
	near.say(busyChat, "turn-busy", "permission")
	await(t, func() bool { return len(pending(near.chat(busyChat))) == 1 })
	w, bob := newWriter(ada), newWriter(ada.invited(map[string]any{"subject": "bob", "level": "operate"}))
	laptop.sleep()

	call := pending(near.chat(busyChat))[0]
	w.mustLeave(w.item(1, 1, waiting.Content{Kind: waiting.Approve, Session: busy, Chat: busyChat, Turn: "turn-busy", Request: call.ToolCallID, Approved: true, Input: digestOf(call)}, nil))
	w.mustLeave(w.item(2, 1, waiting.Content{Kind: waiting.Session, Session: "demo:/00000003", Provider: "demo"}, nil))
	w.mustLeave(w.item(3, 1, message(session, chat, "turn-3", "hello"), nil))
	bob.mustLeave(bob.item(4, 1, message(session, chat, "turn-4", "hello"), nil))
	ada.do("DELETE", "/api/people/bob", nil, nil)
	laptop.change = func(cfg *hostagent.Config) { cfg.ApproveOnly = []string{"somebody-else"} }
	laptop.wake()
	w.awaitResults(map[string]string{"1": "refused this needs the level approve", "2": "refused this needs the level operate", "3": "done"})
	await(t, func() bool { s := near.chat(chat); return s.ActiveTurn == nil && len(s.Turns) == 1 })
	if got := near.chat(chat); got.Turns[0].ID != "turn-3" {
		t.Errorf("the host has %+v; want only turn-3", got)
	}
	if len(pending(near.chat(busyChat))) != 1 {
		t.Error("the host got a refused approval; want its question open")
	}
}

// A left answer is given only to the question that its author saw. For a changed
// question it is refused, and a second answer is late.
func TestLeftAnswerIsForTheSameQuestion(t *testing.T) {
	t.Parallel()
	_, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	near.say(chat, "turn-1", "ask text")
	id := ""
	await(t, func() bool { id = openQuestion(near, chat); return id != "" })
	w := newWriter(ada)
	laptop.sleep()

	reply := waiting.Content{
		Kind: waiting.Reply, Session: session, Chat: chat, Request: id, Response: "accept", Input: waiting.DigestOf(id, "", "name", "text", "What is the branch called?"),
		Answers: json.RawMessage(`{"name":{"state":"submitted","value":{"kind":"text","value":"main"}}}`),
	}
	other := reply
	other.Input = waiting.DigestOf(id, "", "name", "text", "What is the tag called?")
	w.mustLeave(w.item(1, 1, other, nil))
	w.mustLeave(w.item(2, 1, reply, nil))
	w.mustLeave(w.item(3, 1, reply, nil))
	laptop.wake()
	w.awaitResults(map[string]string{"1": "refused the question is not the one that you saw", "2": "done", "3": "late the question no longer exists"})
	await(t, func() bool { return strings.Contains(string(near.call("subscribe", chat, "")), "You answered: accept") })
}

// openQuestion returns the ID of a chat's open question.
func openQuestion(near *rpcClient, chat string) string {
	var got struct {
		Snapshot struct {
			State struct {
				ActiveTurn struct {
					ResponseParts []struct {
						Request  struct{ ID string }
						Response any
					}
				}
			}
		}
	}
	if err := json.Unmarshal(near.call("subscribe", chat, ""), &got); err != nil {
		near.t.Fatal(err)
	}
	for _, p := range got.Snapshot.State.ActiveTurn.ResponseParts {
		if p.Request.ID != "" && p.Response == nil {
			return p.Request.ID
		}
	}
	return ""
}

// trapped starts a laptop whose host gets no item for the session demo:/trap, because
// its connection ends before that, and then stops the host-agent. It returns the
// laptop, writers of two people, and a session with its chat.
func trapped(t *testing.T) (laptop *laptop, ada, bob *writer, session, chat string) {
	t.Helper()
	relay, first := setUp(t)
	laptop = newLaptop(t, relay)
	session, chat = dialHost(t, laptop.direct()).newSession("00000001")
	trap := httptest.NewServer(cuts(laptop.direct(), 1000, "demo:/trap", false))
	t.Cleanup(trap.Close)
	laptop.at = trap.URL
	laptop.wake()
	laptop.online()
	ada, bob = newWriter(first), newWriter(first.invited(map[string]any{"subject": "bob", "level": "operate"}))
	laptop.sleep()
	return laptop, ada, bob, session, chat
}

// The host never gets ada's first item, because its connection ends before that. Only
// ada's next item waits behind it, and bob's item is delivered.
func TestOneItemDoesNotHoldOthers(t *testing.T) {
	t.Parallel()
	laptop, ada, bob, session, chat := trapped(t)
	ada.mustLeave(ada.item(1, 1, message("demo:/trap", "", "turn-1", "hello"), nil))
	ada.mustLeave(ada.item(2, 1, message(session, chat, "turn-2", "hello"), nil))
	bob.mustLeave(bob.item(3, 1, message(session, chat, "turn-3", "hello"), nil))
	laptop.wake()
	bob.awaitResults(map[string]string{"3": "done"})
	if got := ada.results(); got["1"] != "" || got["2"] != "" {
		t.Errorf("results of ada's items behind the first: %v; want none yet", got)
	}
	laptop.stop()
}

// The host never gets ada's items, which fill a whole batch. Bob's item is delivered
// all the same.
func TestLargeItemsDoNotHoldOthers(t *testing.T) {
	t.Parallel()
	laptop, ada, bob, session, chat := trapped(t)
	size := 0
	for i := 1; size <= waiting.MaxBatch; i++ {
		item := ada.item(100+i, 1, message("demo:/trap", "", fmt.Sprint("turn-", i), strings.Repeat("x", waiting.MaxText)), nil)
		size += len(encode(t, item))
		ada.mustLeave(item)
	}
	bob.mustLeave(bob.item(3, 1, message(session, chat, "turn-3", "hello"), nil))
	laptop.wake()
	bob.awaitResults(map[string]string{"3": "done"})
	laptop.stop()
}

// A person's items at a host are one below the bound, and 24 more items come at once.
// The relay keeps exactly one of them.
func TestItemsAtOnceStayInTheBounds(t *testing.T) {
	t.Parallel()
	relay, ada := setUp(t)
	laptop := newLaptop(t, relay)
	laptop.wake()
	laptop.online()
	w := newWriter(ada)
	laptop.sleep()
	const most, more = 32, 24 // a person's items at a host; items tried at once
	of := auth.Client{Tenant: "default", Subject: "bob", Device: "d", Key: "k"}
	put := func(item waiting.Item) error {
		_, err := relay.waiting.Put(t.Context(), of, "laptop", item)
		return err
	}
	items := make([]waiting.Item, most-1+more)
	for i := range items {
		items[i] = w.item(i+1, 1, message("demo:/1", "", "turn", "x"), nil)
	}
	for i := range most - 1 {
		if err := put(items[i]); err != nil {
			t.Fatal(err)
		}
	}
	results := make(chan error, more)
	for _, item := range items[most-1:] {
		go func() { results <- put(item) }()
	}
	kept := 0
	for range more {
		switch err := <-results; {
		case err == nil:
			kept++
		case !errors.Is(err, keeping.ErrFull):
			t.Error(err)
		}
	}
	if kept != 1 {
		t.Errorf("%d of %d items at once were kept; want 1", kept, more)
	}
}

// A sweep removes all records and items of a forgotten host, and none of a known host.
func TestForgottenHostLosesItsRecords(t *testing.T) {
	t.Parallel()
	relay, ada := setUp(t)
	laptop := newLaptop(t, relay)
	laptop.change = func(cfg *hostagent.Config) { cfg.Remember = remembering.Turns }
	laptop.wake()
	laptop.online()
	dialHost(t, laptop.direct()).newSession("00000001")
	w := newWriter(ada)
	await(t, func() bool { return len(relay.keeper.Entries("default", "laptop")) > 0 })
	laptop.sleep()
	w.mustLeave(w.item(1, 1, message("demo:/1", "", "turn", "x"), nil))
	sweep := func() {
		relay.keeper.SweepNow(t.Context())
		relay.waiting.SweepNow(t.Context())
	}
	sweep()
	if records, items := len(relay.keeper.Entries("default", "laptop")), relay.waiting.Stats().Items; records == 0 || items != 1 {
		t.Fatalf("the sweep left %d records and %d items for a known host; want records, and 1 item", records, items)
	}
	if err := relay.registry.Forget(t.Context(), "default", "laptop"); err != nil {
		t.Fatal(err)
	}
	sweep()
	if records, items := len(relay.keeper.Entries("default", "laptop")), relay.waiting.Stats().Items; records+items > 0 {
		t.Errorf("the sweep left %d records and %d items for a forgotten host; want none", records, items)
	}
}

// A relay ends while two items wait. One is not delivered; the other is, but no relay
// has confirmed its result. The next relay delivers the first, and gets the result of
// the second. Neither runs twice.
func TestItemsOutliveTheRelay(t *testing.T) {
	t.Parallel()
	var cfg RelayConfig
	relay, ada := setUpWith(t, func(c *RelayConfig) { cfg = *c })
	laptop := newLaptop(t, relay)
	near := dialHost(t, laptop.direct())
	session, chat := near.newSession("00000001")
	laptop.wake()
	laptop.online()
	w := newWriter(ada)
	laptop.sleep()
	w.mustLeave(w.item(1, 1, message(session, chat, "turn-1", "hello"), nil))
	w.mustLeave(w.item(2, 1, message(session, chat, "turn-2", "hello"), nil))
	near.say(chat, "turn-2", "hello") // as delivered just before the relay's end
	over := waiting.Result{ID: fmt.Sprintf("%032x", 2), Version: 1, State: waiting.Done}
	book, err := waitbook.Open(laptop.state, "default", "laptop", false)
	if err == nil {
		err = book.Write(over.ID, waitbook.Entry{Stage: waitbook.Over, Version: 1, Expires: time.Now().Add(time.Hour).UnixMilli(), Result: &over}, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	relay.Close()

	next, err := StartRelay(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Close)
	laptop.relay, ada.relay = next, next
	await(t, func() bool { return next.waiting.Stats().Items == 2 })
	if got := w.results(); got["1"] != "" || got["2"] != "" {
		t.Errorf("results before the host is back: %v; want none", got)
	}
	laptop.wake()
	w.awaitResults(map[string]string{"1": "done", "2": "done"})
	await(t, func() bool { s := near.chat(chat); return s.ActiveTurn == nil && len(s.Turns) == 2 })
	laptop.stop()
}

// If the relay cannot keep an item, the person gets the reason: an unknown host, a full
// host, or an absent store. A token for different sessions sees nothing of an item.
func TestLeavingSaysWhyNot(t *testing.T) {
	t.Parallel()
	relay, ada := setUp(t)
	laptop := newLaptop(t, relay)
	laptop.wake()
	laptop.online()
	w := newWriter(ada)
	laptop.sleep()
	item := w.item(1, 1, message("demo:/1", "", "turn-1", "hello"), nil)
	if status, said := w.ask("PUT", "/api/hosts/labtop/waiting/"+item.ID, w.in.Token, item, nil); status != http.StatusNotFound || !strings.Contains(said, "no such host") {
		t.Errorf("leaving an item for an unknown host: HTTP %d %s; want 404", status, said)
	}
	w.mustLeave(item)
	for channel, want := range map[string]int{"demo:/1": 1, "demo:/2": 0, "demo:/*": 0} {
		var made struct{ Token string }
		ada.do("POST", "/api/tokens", map[string]any{"level": "look", "channels": []string{channel}}, &made)
		r := httptest.NewRequestWithContext(t.Context(), "GET", relay.URL()+"/api/waiting", nil)
		r.RequestURI = ""
		r.Header.Set("Authorization", "Bearer "+made.Token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []waitingapi.Shown }
		err = json.NewDecoder(answer.Body).Decode(&list)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || len(list.Items) != want {
			t.Errorf("listing with a token for %s: %s with %d items, %v; want %d", channel, answer.Status, len(list.Items), err, want)
		}
	}
	for i := 2; i <= 256; i++ {
		of := auth.Client{Tenant: "default", Subject: fmt.Sprint("person-", i/30), Device: "d", Key: "k"}
		item.ID = fmt.Sprintf("%032x", i) // a relay does not open the letter, which stays the first one's
		if _, err := relay.waiting.Put(t.Context(), of, "laptop", item); err != nil {
			t.Fatalf("leaving item %d: %v; want no error", i, err)
		}
	}
	if status, said := w.leave(w.item(300, 1, message("demo:/1", "", "turn", "x"), nil)); status != http.StatusInsufficientStorage || !strings.Contains(said, "too many items wait") {
		t.Errorf("leaving an item beyond the host's bound: HTTP %d %s; want 507", status, said)
	}
	relay.nats.Close()
	if status, said := w.leave(w.item(1, 2, message("demo:/1", "", "turn-1", "hello"), nil)); status != http.StatusServiceUnavailable || !strings.Contains(said, "was not saved") {
		t.Errorf("leaving an item while the store is unreachable: HTTP %d %s; want 503", status, said)
	}
}

// TestFailureToKeepKeysIsNoRefusal: the host-agent refuses malformed keys. If its disk
// takes nothing, it answers with an internal error, after which a page asks again.
func TestFailureToKeepKeysIsNoRefusal(t *testing.T) {
	t.Parallel()
	_, ada, laptop, _ := setUpLaptop(t)
	ask := func(keys string, want int) {
		t.Helper()
		c := dialHost(t, ada.relay.URL()+"/ahp/laptop", "ahp", "bearer."+ada.in.Token, "dpop."+ada.proof("GET", "/ahp/laptop", ada.in.Token))
		defer func() { _ = c.conn.CloseNow() }()
		c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":"keys","method":"relay/waitingKeys","params":{"channel":"ahp-root://","keys":%q,"name":"phone"}}`, keys))
		for {
			env := c.read()
			if env.Kind != ahp.Response || string(env.ID) != `"keys"` {
				continue
			}
			var got struct{ Code int }
			if err := json.Unmarshal(env.Error, &got); err != nil || got.Code != want {
				t.Errorf("a request to keep the keys %.8q is answered %s, %v; want code %d", keys, env.Error, err, want)
			}
			return
		}
	}
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	ask("AAAA", ahp.CodeInvalidParams)
	away := laptop.state + "-away"
	if err := errors.Join(os.Rename(laptop.state, away), os.WriteFile(laptop.state, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ask(base64.RawURLEncoding.EncodeToString(device.Identity().Bytes()), ahp.CodeInternalError)
	if err := errors.Join(os.Remove(laptop.state), os.Rename(away, laptop.state)); err != nil {
		t.Fatal(err)
	}
}
