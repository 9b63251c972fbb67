package notify_test

import (
	"encoding/json"
	"testing"

	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
	"ahprelay/internal/sealed"
	"ahprelay/test/pushsite"
)

// TestRenewedSubscriptionGetsNothingUnreadable renews a browser's subscription while a sealed host
// still encrypts for the former keys. The browser hears that an agent needs the person,
// and gets no news until the host has the new keys.
func TestRenewedSubscriptionGetsNothingUnreadable(t *testing.T) {
	former, service := pushsite.New(t), pushsite.New(t)
	notifier, board := startSending(t, nil)
	target, err := notifier.SetTarget(t.Context(), ada, former.Target(true))
	if err != nil {
		t.Fatal(err)
	}
	renewed := service.Target(true)
	renewed.ID = target.ID
	if _, err := notifier.SetTarget(t.Context(), ada, renewed); err != nil {
		t.Fatal(err)
	}
	service.Subscribed(notifier.PushKey())
	seq, open := uint64(0), []string{}
	tells := func(n int, kind notice.Kind, keys *notify.PushKeys) {
		t.Helper()
		e := event(n, kind)
		secret, err := sealed.Subscription{P256dh: keys.P256dh, Auth: keys.Auth}.Encrypt([]byte(`{"title":"secret"}`))
		if err != nil {
			t.Fatal(err)
		}
		e = notice.Event{ID: e.ID, Kind: kind, At: e.At, Pushes: []notice.Push{{Target: target.ID, P256dh: keys.P256dh, Data: secret}}}
		seq++
		if kind.Needs() {
			open = append(open, e.ID)
		}
		board.Take("t", "h", notice.Report{Instance: "a", Seq: seq, Open: open, Events: []notice.Event{e}})
	}
	title := func() string {
		t.Helper()
		var m struct{ Title string }
		if text := service.Next().Text; json.Unmarshal(text, &m) != nil {
			t.Fatalf("the push is %s; want JSON", text)
		}
		return m.Title
	}
	tells(1, notice.SealedNews, former.Target(true).Keys)
	tells(2, notice.Sealed, former.Target(true).Keys)
	if got := title(); got == "secret" {
		t.Error("the first push is for the new keys; want the relay's own text")
	}
	tells(3, notice.SealedNews, renewed.Keys)
	if got := title(); got != "secret" {
		t.Errorf("after the question, the title is %q; want the host's news for the new keys, and none for the former", got)
	}
}
