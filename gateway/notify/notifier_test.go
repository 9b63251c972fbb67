package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A network takes the requests to targets. It answers them as set for the target's
// host, and records them.
type network struct {
	mu      sync.Mutex
	answers map[string]func(*http.Request) (int, http.Header) // by host; status 0: no answer
	got     map[string][]sent
}

type sent struct {
	at     time.Time
	body   string
	status int
}

func newNetwork() *network {
	return &network{answers: map[string]func(*http.Request) (int, http.Header){}, got: map[string][]sent{}}
}

// set makes the target at a host answer with a status.
func (n *network) set(host string, status int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers[host] = func(*http.Request) (int, http.Header) { return status, nil }
}

// told returns how many notifications targets have accepted for each event's id.
func (n *network) told() map[string]int { return n.taken("event") }

// withdrawn returns how many withdrawals targets have accepted for each event's id.
func (n *network) withdrawn() map[string]int { return n.taken("withdrawn") }

func (n *network) taken(kind string) map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := map[string]int{}
	for _, list := range n.got {
		for _, one := range list {
			var body struct {
				Type string
				Data notify.Message
			}
			if json.Unmarshal([]byte(one.body), &body) == nil && one.status == http.StatusOK && body.Type == kind {
				taken[body.Data.ID]++
			}
		}
	}
	return taken
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	host := r.URL.Hostname()
	n.mu.Lock()
	status, header := http.StatusOK, http.Header{}
	if answer := n.answers[host]; answer != nil {
		status, header = answer(r)
	}
	n.got[host] = append(n.got[host], sent{time.Now(), string(body), status})
	n.mu.Unlock()
	if status == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func (n *network) count(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.got[host])
}

// A fixture is a Notifier with its Board, its records, and the network with its
// targets.
type fixture struct {
	*notify.Notifier
	t       *testing.T
	net     *network
	board   *notify.Board
	shelf   *shelf
	good    bool
	unsure  atomic.Bool     // it is unknown whether grants are good
	revoked map[string]bool // token ids
	seq     uint64
}

var ada = auth.Client{ID: "1", Tenant: "t", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessApprove}

// The URLs of targets. The network of these tests accepts any host, but the Notifier
// resolves the name of a new target by DNS.
const (
	one = "http://127.0.0.1/one"
	two = "http://127.0.0.2/two"
)

func newFixture(t *testing.T) *fixture {
	d := &fixture{t: t, net: newNetwork(), shelf: newShelf(), good: true, revoked: map[string]bool{}}
	d.start()
	return d
}

// start starts a Notifier with an empty Board, as a relay does when it starts. The stored
// records remain.
func (d *fixture) start() {
	var err error
	d.board = notify.NewBoard()
	d.Notifier, err = notify.Start(notify.Config{
		Board: d.board, Records: d.shelf.view(), Instance: "me", Log: slog.New(slog.DiscardHandler), Transport: d.net,
		Standing: func(who auth.Client) (auth.Client, bool, error) {
			if d.unsure.Load() {
				return who, false, errors.New("the store is away")
			}
			return who, d.good && !d.revoked[who.ID], nil
		},
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *fixture) stop() {
	d.Notifier.Close()
}

func (d *fixture) way(url string, change func(*notify.Target)) notify.Target {
	d.t.Helper()
	w := notify.Target{Kind: notify.Webhook, URL: url}
	if change != nil {
		change(&w)
	}
	w, err := d.SetTarget(context.Background(), ada, w)
	if err != nil {
		d.t.Fatal(err)
	}
	return w
}

// says gives the Board a host-agent's next report, with the open events and with events
// that are over. It returns when the Notifier has stored its jobs for them.
func (d *fixture) says(open []notice.Event, over ...notice.Event) {
	d.t.Helper()
	d.seq++
	r := notice.Report{Instance: "agent", Seq: d.seq, Events: append(append([]notice.Event{}, open...), over...)}
	for _, e := range open {
		r.Open = append(r.Open, e.ID)
	}
	d.board.Take("t", "h", r)
	if err := d.Keep(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *fixture) want(host string, n int) {
	d.t.Helper()
	synctest.Wait()
	if got := d.net.count(host); got != n {
		d.t.Fatalf("%s was told %d times; want %d", host, got, n)
	}
}

// TestEventsAreSentOnce: the Notifier sends each event and its withdrawal once, to
// targets for the event's kind. It sends nothing for a person whose grant has ended.
func TestEventsAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		d.way(one, nil)
		d.way(two, func(w *notify.Target) { w.Kinds = []notice.Kind{notice.Done} })
		ask := event(1, notice.Approval)
		d.says([]notice.Event{ask})
		d.want("127.0.0.1", 1)
		d.says([]notice.Event{ask})
		d.want("127.0.0.1", 1)
		d.says(nil, event(2, notice.Done))
		d.want("127.0.0.1", 3) // the withdrawal of the first event, and the second event
		d.want("127.0.0.2", 1)
		if body := d.net.got["127.0.0.1"][0].body; strings.Contains(body, `"title"`) || !strings.Contains(body, `"host":"h"`) {
			t.Errorf("the target's notification is %s; want the host's name, and no session title", body)
		}
		d.good = false
		d.says([]notice.Event{event(3, notice.Question)})
		time.Sleep(time.Hour)
		d.want("127.0.0.1", 3)
		if got := len(d.Deliveries("t", "ada")); got != 4 {
			t.Errorf("%d deliveries are shown; want 4", got)
		}
	})
}

// TestNotificationsWaitWhileGrantsAreUnknown: a relay cannot read whether the grant of a target
// is still valid. It must send nothing, drop nothing, and let no lesser token change the target.
// When it can read the grant again, it must send the notification once.
func TestNotificationsWaitWhileGrantsAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		w := d.way(one, nil)
		d.unsure.Store(true)
		d.says([]notice.Event{event(1, notice.Approval)})
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 0)
		less := ada
		less.Access = auth.AccessRead
		if err := d.RemoveTarget(less, w.ID); !errors.Is(err, notify.ErrLess) {
			t.Errorf("a token of the level look removes the target: %v; want %v", err, notify.ErrLess)
		}
		d.unsure.Store(false)
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 1)
	})
}

// TestFailingTargetIsRetried: a target fails in several ways, while a second target
// receives all events at once. The Notifier tries the failing target again after the
// delay, gives up in the end, and removes a target that answers 410.
func TestFailingTargetIsRetried(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(n int) (int, http.Header)
		tells  bool // the target receives all events in the end
		after  time.Duration
		gone   bool
	}{
		{"500", func(n int) (int, http.Header) { return []int{500, 503, 200}[min(n, 2)], nil }, true, 500 * time.Millisecond, false},
		{"429", func(n int) (int, http.Header) {
			if n == 0 {
				return 429, http.Header{"Retry-After": {"90"}}
			}
			return 200, nil
		}, true, 90 * time.Second, false},
		{"hangs", func(n int) (int, http.Header) { return []int{0, 200}[min(n, 1)], nil }, true, 0, false},
		{"410", func(int) (int, http.Header) { return 410, nil }, false, 0, true},
		{"400", func(int) (int, http.Header) { return 400, nil }, false, 0, false},
		{"redirect", func(int) (int, http.Header) { return 302, http.Header{"Location": {"http://169.254.169.254/"}} }, false, 0, false},
		{"never", func(int) (int, http.Header) { return 500, nil }, false, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newFixture(t)
				defer d.stop()
				n := 0
				d.net.answers["127.0.0.1"] = func(*http.Request) (int, http.Header) { n++; return test.answer(n - 1) }
				d.way(one, nil)
				d.way(two, nil)
				began := time.Now()
				for i := range 20 {
					d.says(nil, event(i, notice.Done))
				}
				synctest.Wait()
				if got := d.net.count("127.0.0.2"); got != 20 || time.Since(began) != 0 {
					t.Fatalf("the other was told %d of 20 after %v; want all at once", got, time.Since(began))
				}
				time.Sleep(2 * 24 * time.Hour)
				synctest.Wait()
				calls := d.net.count("127.0.0.1")
				if test.tells && calls < 21 || test.name == "never" && (calls < 20 || calls > 400) || test.gone && calls > 8 {
					t.Errorf("%d delivery attempts in two days; want at least 21 for a target with Retry-After, 20 to 400 without, at most 8 for a gone target", calls)
				}
				for _, attempt := range d.net.got["127.0.0.1"] { // the first attempts are concurrent, before any response
					if next := attempt.at.Sub(began); next > 0 && next < test.after {
						t.Errorf("the next delivery attempt came after %v; want %v", next, test.after)
					}
				}
				if ways := len(d.Person("t", "ada").Targets); (ways == 1) != test.gone {
					t.Errorf("ada has %d targets; want 1, or 0 after an answer that the target is gone", ways)
				}
				if n := d.shelf.jobs(); n != 0 {
					t.Errorf("the store has %d jobs after all deliveries; want 0", n)
				}
			})
		})
	}
}

// TestTargetThatChangesDuringAnAttemptStays changes a target's address while an attempt to the
// former address is under way, as a browser does that renews its subscription. The former address
// then answers 410. The target must stay, and receive this event and the next.
func TestTargetThatChangesDuringAnAttemptStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		target := d.way(one, nil)
		d.net.answers["127.0.0.1"] = func(*http.Request) (int, http.Header) {
			target.URL = two
			if _, err := d.SetTarget(context.Background(), ada, target); err != nil {
				t.Error(err)
			}
			return http.StatusGone, nil
		}
		d.says(nil, event(1, notice.Done))
		d.want("127.0.0.1", 1)
		d.says(nil, event(2, notice.Done))
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 1)
		d.want("127.0.0.2", 2)
	})
}

// TestQuietHoursMutesAndPagesDelayNotifications: a notification waits while its person
// looks at a page, and during quiet hours. An event that comes during a mute is not
// notified.
func TestQuietHoursMutesAndPagesDelayNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it is midnight UTC
		d := newFixture(t)
		defer d.stop()
		d.way(one, nil)
		d.Looking("t", "ada")
		d.says([]notice.Event{event(1, notice.Approval)})
		time.Sleep(9 * time.Second)
		d.says([]notice.Event{event(2, notice.Approval)}) // event 1 has been answered
		time.Sleep(9 * time.Second)
		d.want("127.0.0.1", 0)
		time.Sleep(2 * time.Second)
		d.want("127.0.0.1", 1)
		time.Sleep(time.Minute)

		if err := d.SetTimes(ada, &notify.Quiet{From: "22:00", To: "07:00", Zone: "UTC"}, nil); err != nil {
			t.Fatal(err)
		}
		d.says([]notice.Event{event(2, notice.Approval), event(3, notice.Question)})
		time.Sleep(6 * time.Hour)
		d.want("127.0.0.1", 1)
		time.Sleep(time.Hour)
		d.want("127.0.0.1", 2)

		if err := d.SetTimes(ada, nil, []notify.Mute{{Host: "h", Session: "s:/1", Until: time.Now().Add(time.Hour)}}); err != nil {
			t.Fatal(err)
		}
		d.says([]notice.Event{event(2, notice.Approval), event(3, notice.Question), event(4, notice.Question)})
		d.want("127.0.0.1", 2)
		time.Sleep(2 * time.Hour)
		d.says([]notice.Event{event(2, notice.Approval), event(3, notice.Question), event(4, notice.Question), event(5, notice.Question)})
		d.want("127.0.0.1", 3)
	})
}

// TestDelayedNotificationIsOfTheCurrentQuestion: while a notification waits for its time, the
// host-agent reports the question again, with a different text or for one subject only. The
// target receives the current text, or nothing if the question is for another subject. A question that is for
// one subject only for a time must not be lost for others.
func TestDelayedNotificationIsOfTheCurrentQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		d.way(one, func(w *notify.Target) { w.Details = true })
		d.Looking("t", "ada")
		changed, private, shared := event(1, notice.Question), event(2, notice.Question), event(3, notice.Question)
		changed.Text, private.Text, shared.Text = "first text", "secret", "third text"
		d.says([]notice.Event{changed, private, shared})
		changed.Text, private.Only, shared.Only = "second text", "bob", "bob"
		d.says([]notice.Event{changed, private, shared})
		shared.Only = ""
		d.says([]notice.Event{changed, private, shared})
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 2)
		if body := d.net.got["127.0.0.1"][0].body + d.net.got["127.0.0.1"][1].body; !strings.Contains(body, "second text") || !strings.Contains(body, "third text") {
			t.Errorf("the target's notifications are %s; want the second and the third text", body)
		}
	})
}

// TestNotificationOfAPrivateQuestionIsWithdrawn: ada and eve were notified of a question when its session
// becomes private to ada, perhaps while the relay restarts. Eve's notification must be withdrawn at once, without the
// new text; ada's stays until the question is answered.
func TestNotificationOfAPrivateQuestionIsWithdrawn(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		testPrivateQuestion(t, restarts)
	}
}

func testPrivateQuestion(t *testing.T, restarts bool) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer func() { d.stop() }()
		d.way(one, nil)
		eve := ada
		eve.ID, eve.Subject = "2", "eve"
		if _, err := d.SetTarget(t.Context(), eve, notify.Target{Kind: notify.Webhook, URL: two, Details: true}); err != nil {
			t.Fatal(err)
		}
		ask := event(1, notice.Question)
		d.says([]notice.Event{ask})
		d.want("127.0.0.1", 1)
		d.want("127.0.0.2", 1)
		if restarts {
			d.stop()
			d.start()
		}
		ask.Only, ask.Text = "ada", "secret"
		d.says([]notice.Event{ask})
		d.want("127.0.0.1", 1)
		d.want("127.0.0.2", 2)
		if body := d.net.got["127.0.0.2"][1].body; !strings.Contains(body, `"withdrawn":true`) || strings.Contains(body, "secret") {
			t.Errorf("eve's second notification is %s; want the withdrawal of the first", body)
		}
		d.says(nil)
		d.want("127.0.0.1", 2)
		d.want("127.0.0.2", 2)
	})
}

// TestHostWithdrawsOnlyItsOwnEvents: a second host reports an event with the ID of the first host's
// question, and then its end. It can know the ID, because clients are shown it. The notification of
// the first host's question must be sent, and not be withdrawn.
func TestHostWithdrawsOnlyItsOwnEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		defer d.stop()
		d.way(one, nil)
		ask := event(1, notice.Approval)
		seq := uint64(0)
		second := func(open ...notice.Event) {
			t.Helper()
			seq += 2
			ids := []string{}
			for _, e := range open {
				ids = append(ids, e.ID)
			}
			d.board.Take("t", "second", notice.Report{Instance: "other", Seq: seq, Open: ids, Events: open})
			if err := d.Keep(); err != nil {
				t.Fatal(err)
			}
		}
		d.Looking("t", "ada") // delays the notification
		d.says([]notice.Event{ask})
		second(ask)
		second()
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 1)
		second(ask)
		second()
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 1)
		d.says(nil)
		d.want("127.0.0.1", 2)
	})
}

// TestRevokedTokenMutesNothing: a token sets quiet hours or mutes, and is then revoked.
// From then on, they delay no new event, and TimesFor returns none.
func TestRevokedTokenMutesNothing(t *testing.T) {
	for _, times := range []struct {
		quiet *notify.Quiet
		mutes []notify.Mute
	}{
		{mutes: []notify.Mute{{Host: "h"}}},
		{quiet: &notify.Quiet{From: "00:00", To: "23:59", Zone: "UTC"}},
	} {
		synctest.Test(t, func(t *testing.T) { // it is midnight UTC
			d := newFixture(t)
			defer d.stop()
			d.way(one, nil)
			setter := ada
			setter.ID = "2"
			if err := d.SetTimes(setter, times.quiet, times.mutes); err != nil {
				t.Fatal(err)
			}
			d.says([]notice.Event{event(1, notice.Approval)})
			time.Sleep(time.Minute)
			d.want("127.0.0.1", 0)
			d.revoked["2"] = true
			d.says([]notice.Event{event(1, notice.Approval), event(2, notice.Approval)})
			time.Sleep(time.Minute)
			d.want("127.0.0.1", 1)
			p := d.Person("t", "ada")
			if quiet, mutes := d.TimesFor(&p, ada); quiet != nil || mutes != nil {
				t.Errorf("TimesFor = %v, %v after the revocation; want none", quiet, mutes)
			}
		})
	}
}

// TestStoredJobsSurviveARestart: a relay restarts while a target fails. The new
// Notifier sends each stored job once, except for events answered meanwhile, and does
// not repeat a notification from before.
func TestStoredJobsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		d.way(one, nil)
		d.says([]notice.Event{event(1, notice.Approval)})
		d.want("127.0.0.1", 1)
		d.net.mu.Lock()
		d.net.answers["127.0.0.1"] = func(*http.Request) (int, http.Header) { return 503, nil }
		d.net.mu.Unlock()
		d.says([]notice.Event{event(1, notice.Approval), event(2, notice.Approval), event(3, notice.Approval)}, event(4, notice.Done))
		time.Sleep(time.Minute)
		d.stop()
		d.net.mu.Lock()
		d.net.answers, d.net.got = nil, map[string][]sent{}
		d.net.mu.Unlock()
		d.start()
		defer d.stop()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		before := d.net.count("127.0.0.1")
		d.says([]notice.Event{event(1, notice.Approval), event(2, notice.Approval)})
		time.Sleep(time.Hour)
		synctest.Wait()
		told := map[string]int{}
		for _, s := range d.net.got["127.0.0.1"] {
			for i := range 5 {
				if strings.Contains(s.body, event(i, "").ID) {
					told[fmt.Sprint(i)]++
				}
			}
		}
		if diff := cmp.Diff(map[string]int{"2": 1, "4": 1}, told); diff != "" {
			t.Errorf("events delivered after the crash (-want +got), %d of them before the host-agent connected:\n%s", before, diff)
		}
	})
}

// TestNotificationWaitsForTheOpenEvents: a relay restarts while a notification waits for its time.
// The host-agent's first report names the open event, and the relay requests it in full. Until it
// arrives, the relay must not take the event for ended: it sends the notification in the end.
func TestNotificationWaitsForTheOpenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		d.way(one, nil)
		d.Looking("t", "ada")
		ask := event(1, notice.Approval)
		d.says([]notice.Event{ask})
		d.stop()
		d.start()
		defer d.stop()
		d.seq++
		if ack := d.board.Take("t", "h", notice.Report{Instance: "agent", Seq: d.seq, Open: []string{ask.ID}}); !ack.Again {
			t.Error("the relay lacks an open event, and does not request it")
		}
		time.Sleep(15 * time.Second)
		d.says([]notice.Event{ask})
		time.Sleep(time.Minute)
		d.want("127.0.0.1", 1)
	})
}

// TestTargetsAreChecked: SetTarget refuses each bad target with the reason, and the
// 17th target. SetTimes refuses malformed quiet hours, and settings that are too long together.
func TestTargetsAreChecked(t *testing.T) {
	d := newFixture(t)
	defer d.stop()
	private := errors.New("no public address")
	for _, test := range []struct {
		way  notify.Target
		want string
	}{
		{notify.Target{Kind: notify.Webhook, URL: "http://10.0.0.1/"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "https://169.254.169.254/latest/meta-data"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "https://[::1]/"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "https://[::ffff:10.0.0.1]/"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "https://[64:ff9b::a00:1]/"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "https://no-such-name.invalid/"}, private.Error()},
		{notify.Target{Kind: notify.Webhook, URL: "http://8.8.8.8/"}, "no TLS"},
		{notify.Target{Kind: notify.Webhook, URL: "file:///etc/passwd"}, "malformed URL"},
		{notify.Target{Kind: notify.Webhook, URL: "gopher://8.8.8.8/"}, "gopher"},
		{notify.Target{Kind: notify.Webhook, URL: "https://user:secret@8.8.8.8/"}, "must not contain"},
		{notify.Target{Kind: notify.Webhook, URL: one + strings.Repeat("x", 3000)}, "malformed URL"},
		{notify.Target{Kind: notify.Webhook, URL: one, Secret: "short"}, "whsec_"},
		{notify.Target{Kind: notify.Webhook, URL: one, Kinds: []notice.Kind{"other"}}, "unknown kind"},
		{notify.Target{Kind: notify.Ntfy, URL: one + "/two"}, "ntfy topic"},
		{notify.Target{Kind: notify.Ntfy, URL: one, Token: "a b"}, "single word"},
		{notify.Target{Kind: notify.WebPush, URL: one}, "subscription"},
		{notify.Target{Kind: notify.WebPush, URL: one, Keys: &notify.PushKeys{P256dh: "AAAA", Auth: "AAAA"}}, "subscription"},
		{notify.Target{Kind: notify.Mail, To: "ada@example.com"}, "sends no mail"},
		{notify.Target{Kind: "pigeon", URL: one}, "unknown kind"},
		{notify.Target{ID: "other", Kind: notify.Webhook, URL: one}, "no such notification target"},
	} {
		if _, err := d.SetTarget(t.Context(), ada, test.way); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("SetTarget(%+v) = %v; want %q", test.way, err, test.want)
		}
	}
	for range 16 {
		d.way(one, nil)
	}
	if _, err := d.SetTarget(t.Context(), ada, notify.Target{Kind: notify.Slack, URL: one}); !errors.Is(err, notify.ErrTooMany) {
		t.Errorf("SetTarget of a 17th target = %v; want %v", err, notify.ErrTooMany)
	}
	for _, q := range []notify.Quiet{{}, {"22:00", "07:00", "Nowhere/Land"}, {"22:00", "22:00", "UTC"}, {"24:00", "07:00", "UTC"}} {
		if err := d.SetTimes(ada, &q, nil); err == nil {
			t.Errorf("SetTimes(%v) = nil; want an error", q)
		}
	}
	long := make([]notify.Mute, 256)
	for i := range long {
		long[i] = notify.Mute{Host: "h", Session: fmt.Sprint("s:/", i, strings.Repeat("x", 300))}
	}
	if err := d.SetTimes(ada, nil, long); !errors.Is(err, notify.ErrTooMany) {
		t.Errorf("SetTimes with mutes of 80 KB = %v; want %v", err, notify.ErrTooMany)
	}
	if err := d.SetTimes(ada, nil, long[:100]); err != nil {
		t.Errorf("SetTimes with mutes of 30 KB = %v; want no error", err)
	}
}
