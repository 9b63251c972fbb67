package hostagent

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"ahprelay/broker/notice"
	"ahprelay/internal/sealed"
)

// An asker is the part of a sealed host's agent that reports questions to relays.
type asker struct {
	*testing.T
	dir string
	*seals
}

// restart replaces the state by what the vault's files hold, as after a restart of the host-agent.
func (r *asker) restart() {
	r.Helper()
	v, err := openVault(r.dir, "default", "laptop")
	if err != nil {
		r.Fatal(err)
	}
	r.seals = &seals{agent: &Agent{access: &access{host: "laptop"}, cfg: Config{Log: slog.New(slog.DiscardHandler)}}, vault: v}
}

// says reports these open questions and events to a relay, and confirms the report. more is whether
// another report must follow.
func (r *asker) says(open []string, events ...notice.Event) (out notice.Report, more bool) {
	r.Helper()
	out, ends, err := r.report(notice.Report{Instance: "a", Seq: 1, Open: open, Events: events})
	if err != nil {
		r.Fatal(err)
	}
	return out, r.reported(ends)
}

// TestQuestionIsOnDiskBeforeItsReport cannot write a question at first. The next report must write
// it, because relays and devices keep the question's ID across a restart.
func TestQuestionIsOnDiskBeforeItsReport(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	if _, err := r.signer(); err != nil { // makes and writes the key
		t.Fatal(err)
	}
	e, path := questionOf("q1", "which?"), r.path
	r.path = t.TempDir() // cannot be replaced by a file
	if _, _, err := r.report(notice.Report{Instance: "a", Seq: 1, Open: []string{"q1"}, Events: []notice.Event{e}}); err == nil {
		t.Fatal("a report whose question is not on disk succeeds; want an error")
	}
	r.path = path
	out, _ := r.says([]string{"q1"}, e)
	r.restart()
	if again, _ := r.says([]string{"q1"}, e); !slices.Equal(again.Open, out.Open) {
		t.Errorf("after a restart, the question has the IDs %v; want %v", again.Open, out.Open)
	}
}

func questionOf(id, text string) notice.Event {
	return notice.Event{ID: id, Kind: notice.Question, Session: "s:/1", Text: text, At: time.Now()}
}

// TestQuestionsKeepTheirNonces reports a question several times, also after a restart. The question
// must keep its ID and nonce until it changes or is answered. A report has at most maxEnds ended
// questions; later reports have the remaining ended questions.
func TestQuestionsKeepTheirNonces(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	only := func(out notice.Report) string {
		t.Helper()
		if len(out.Open) != 1 || len(out.Events) != 1 || out.Events[0].ID != out.Open[0] || out.Events[0].Kind != notice.Sealed || out.Events[0].Text != "" {
			t.Fatalf("the report is %+v; want one sealed question", out)
		}
		return out.Open[0]
	}
	first := questionOf("q1", "which?")
	out, _ := r.says([]string{"q1"}, first)
	id, nonce := only(out), r.state.Asked[0].Nonce
	if out, _ = r.says([]string{"q1"}); !slices.Equal(out.Open, []string{id}) {
		t.Errorf("the open questions are %v; want %s", out.Open, id)
	}
	r.restart()
	if out, _ = r.says([]string{"q1"}, questionOf("q1", "which?")); only(out) != id || r.state.Asked[0].Nonce != nonce {
		t.Error("after a restart, the same question has a different ID or nonce; want the same")
	}
	if _, ok := r.asked(id, "x"); ok {
		t.Error("an answer with a different nonce is accepted; want a refusal")
	}
	if _, ok := r.asked(id, nonce); !ok {
		t.Fatal("an answer with the question's nonce is refused; want it accepted")
	}

	// The answer uses the nonce up, also after a restart. Then the host asks the question again.
	r.used(id)
	r.restart()
	if _, ok := r.asked(id, nonce); ok {
		t.Error("an answer with a used nonce is accepted; want a refusal")
	}
	again := questionOf("q1", "which?")
	out, _ = r.says([]string{"q1"}, again)
	if next := r.state.Asked[len(r.state.Asked)-1]; next.ID == id || next.Nonce == nonce || out.Ends[id] != nil && len(out.Ends) != 1 {
		t.Errorf("the question, asked again, is %+v, with the ends %v; want a new ID and nonce", next, out.Ends)
	}

	// The host asks a different question with the same ID.
	id = only(notice.Report{Open: out.Open, Events: out.Events})
	out, _ = r.says([]string{"q1"}, questionOf("q1", "where?"))
	if _, ended := out.Ends[id]; !ended || only(notice.Report{Open: out.Open, Events: out.Events}) == id {
		t.Errorf("a changed question is reported as %+v; want the end of the old ID, and a new ID", out)
	}

	// Five questions end at once, which is more than a report may hold.
	for _, name := range []string{"q2", "q3", "q4", "q5"} {
		r.says([]string{"q1", "q2", "q3", "q4", "q5"}, questionOf(name, name))
	}
	out, more := r.says(nil)
	if len(out.Ends) != maxEnds || len(out.Open) != 3 || !more {
		t.Errorf("of five ended questions, the report ends %d, and %d are open for the relay, more = %v; want maxEnds, 3, true", len(out.Ends), len(out.Open), more)
	}
	r.says(nil)
	if out, more = r.says(nil); len(out.Ends) != 1 || len(out.Open) != 0 || more {
		t.Errorf("the last report has %d ends and %d open questions; want 1 and 0", len(out.Ends), len(out.Open))
	}
	if len(r.state.Asked) != 0 {
		t.Errorf("%d questions are remembered after their end; want 0", len(r.state.Asked))
	}
}

// TestRelayCannotGuessTheSessionOfNews reports an item that could not be delivered, at two hosts. The relay
// knows the item and the host-agent's instance. If it could compute the event's ID from them and a session's
// URI, it could test which session the item was for: then the IDs at both hosts would be equal. A repeated
// report must have the same ID.
func TestRelayCannotGuessTheSessionOfNews(t *testing.T) {
	var ids [2][2]string
	for i := range ids {
		r := &asker{T: t, dir: t.TempDir()}
		r.restart()
		for n := range ids[i] {
			out, _ := r.says(nil, notice.Event{ID: notice.ID("s:/1", "waiting 7"), Kind: notice.Undelivered, Session: "s:/1", At: time.Now()})
			ids[i][n] = out.Events[0].ID
		}
		if ids[i][0] != ids[i][1] {
			t.Errorf("a repeated report has the ID %s; want %s again", ids[i][1], ids[i][0])
		}
	}
	if ids[0][0] == ids[1][0] {
		t.Error("two hosts report the same ID; want IDs that depend on a secret of the host")
	}
}

// subscribed registers a browser's push subscription for a device.
func (r *asker) subscribed(d *sealed.Device, grants ...string) vaultBrowser {
	r.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		r.Fatal(err)
	}
	b := vaultBrowser{Target: "w", Grants: grants, Subscription: sealed.Subscription{
		P256dh: base64.RawURLEncoding.EncodeToString(key.PublicKey().Bytes()), Auth: base64.RawURLEncoding.EncodeToString(make([]byte, 16)),
	}}
	if _, err := r.subscribe(d.Identity(), b); err != nil {
		r.Fatal(err)
	}
	return r.state.Browsers[len(r.state.Browsers)-1]
}

// TestBrowsersOfAdmittedDevicesAreNotified subscribes the browsers of a device and of a device that
// it admitted. A browser must not be notified after its device's time has ended, or after the first
// device is removed, even if an old file still lists the browser.
func TestBrowsersOfAdmittedDevicesAreNotified(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	var devices [2]*sealed.Device
	for i := range devices {
		var err error
		if devices[i], err = sealed.NewDevice(); err != nil {
			t.Fatal(err)
		}
	}
	phone, watch := devices[0], devices[1]
	if err := pairDevice(t, r.vault, phone.Identity()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	holder, _ := r.Holder(phone.Identity().Fingerprint())
	grant, err := phone.SignGrant(r.secret.Public(), sealed.Grant{
		Device: watch.Identity(), Subject: holder.Subject, Level: holder.Level, From: now, End: now.Add(time.Hour), Serial: sealed.Fingerprint{1}.String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	kept := r.subscribed(phone)
	r.subscribed(watch, grant)
	notified := func(at time.Time) int {
		list, _ := r.browsers(at)
		return len(list)
	}
	if n := notified(now); n != 2 {
		t.Fatalf("%d browsers are notified; want both", n)
	}
	if n := notified(now.Add(2 * time.Hour)); n != 1 {
		t.Errorf("%d browsers are notified behind the grant's end; want the phone's", n)
	}
	if n := notified(now.Add(sealed.MaxLife + time.Hour)); n != 0 {
		t.Errorf("%d browsers are notified after the time of all devices; want 0", n)
	}
	if err := r.remove(phone.Identity().Fingerprint().String(), true); err != nil {
		t.Fatal(err)
	}
	if len(r.state.Browsers) != 1 {
		t.Errorf("the host keeps %d browsers; want to forget that of the removed device", len(r.state.Browsers))
	}
	r.state.Browsers = append(r.state.Browsers, kept)
	if n := notified(now); n != 0 {
		t.Errorf("%d browsers are notified after the removal; want 0", n)
	}
}

// TestEndedDevicesLeaveRoomForBrowsers subscribes the browsers of as many devices as a host notifies, and
// ends the devices' grants. The browser of a further device must be accepted: nobody can turn the
// notifications of the ended devices off any more.
func TestEndedDevicesLeaveRoomForBrowsers(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	phone := newDevice(t)
	if err := pairDevice(t, r.vault, phone.Identity()); err != nil {
		t.Fatal(err)
	}
	holder, _ := r.Holder(phone.Identity().Fingerprint())
	from := time.Now().Add(-2 * time.Hour)
	for i := range notice.MaxPushes {
		device := newDevice(t)
		grant, err := phone.SignGrant(r.secret.Public(), sealed.Grant{
			Device: device.Identity(), Subject: holder.Subject, Level: holder.Level, From: from, End: from.Add(time.Hour), Serial: sealed.Fingerprint{byte(i)}.String(),
		})
		if err != nil {
			t.Fatal(err)
		}
		r.subscribed(device, grant)
	}
	r.subscribed(phone)
	if list, _ := r.browsers(time.Now()); len(list) != 1 {
		t.Errorf("%d browsers are notified; want the phone's", len(list))
	}
}

// TestQuestionsOfAnOutageStayReportable has the host ask and end more questions than a report may list as
// open, while no relay confirms a report. The next report must still be one that relays accept, and list
// the question that is open.
func TestQuestionsOfAnOutageStayReportable(t *testing.T) {
	r := &asker{T: t, dir: t.TempDir()}
	r.restart()
	const each = 50 // questions of a report: each report is stored with all questions
	seq := uint64(0)
	for first := 0; first < notice.MaxOpen+10; first += each {
		seq++
		report := notice.Report{Instance: "a", Seq: seq}
		for i := range each {
			name := fmt.Sprint("q", first+i)
			report.Open, report.Events = append(report.Open, name), append(report.Events, questionOf(name, "which?"))
		}
		if _, _, err := r.report(report); err != nil {
			t.Fatal(err)
		}
	}
	open := r.state.Asked[len(r.state.Asked)-1].Event
	out, _, err := r.report(notice.Report{Instance: "a", Seq: seq + 1, Open: []string{open}, Events: []notice.Event{questionOf(open, "which?")}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := notice.ReadReport(data); err != nil {
		t.Errorf("a relay reads the report after the outage: %v; want no error", err)
	}
	if last := r.state.Asked[len(r.state.Asked)-1]; last.Event != open || last.Ended || !slices.Contains(out.Open, last.ID) {
		t.Errorf("the last question is %+v, and the report lists %d as open; want the open one in it", last, len(out.Open))
	}
}
