package test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/notify"
	"ahprelay/hostagent"
	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
	"ahprelay/test/eavesdrop"
	"ahprelay/test/pushsite"
	"ahprelay/test/stack"
)

// A sealedBrowser is a browser on a paired device, with the device's push service.
type sealedBrowser struct {
	*pushsite.Service
	h        *sealedHost
	pairing  *connect.Pairing
	way      notify.Target
	verifier sealed.Verifier // checks the host's signature
}

// A sealedNote is a notification after the device has decrypted it.
type sealedNote struct {
	notify.Message
	To, Nonce string
	Answers   []struct {
		Label  string
		Deny   bool
		Option string
	} `json:"answers"`
}

// asks sends requests to the host-agent on a new sealed connection. It returns the
// responses in the same order.
func (h *sealedHost) asks(p *connect.Pairing, requests ...any) (answers []map[string]any) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), stepTime)
	defer cancel()
	token, err := h.issue(nil)
	if err != nil {
		h.t.Fatal(err)
	}
	ws, _, err := websocket.Dial(ctx, h.URL(stack.Host), &websocket.DialOptions{Subprotocols: []string{"ahp.sealed.1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		h.t.Fatal(err)
	}
	defer ws.CloseNow()
	i, frame, err := sealed.NewInitiator(sealed.InitiatorConfig{Host: stack.Host, HostKey: &p.Key, Device: p.Device, Limit: 1 << 20, Greeting: sealed.Greeting{Name: "a phone", Window: 30}})
	var session *sealed.Session
	write := func(frames ...[]byte) {
		for _, f := range frames {
			if err == nil {
				err = ws.Write(ctx, websocket.MessageBinary, f)
			}
		}
	}
	write(frame)
	for err == nil && len(answers) < len(requests) {
		var data []byte
		if _, data, err = ws.Read(ctx); err != nil {
			break
		}
		if session == nil {
			frame, session, err = i.Read(data)
			write(frame)
			continue
		}
		content, body, done, e := session.Open(data)
		if err = e; done && content == sealed.Answer {
			var answer map[string]any
			err = json.Unmarshal(body, &answer)
			answers = append(answers, answer)
		}
		if err == nil && done && (content == sealed.Answer || content == sealed.Welcome) && len(answers) < len(requests) {
			request, e := json.Marshal(requests[len(answers)])
			frames, e2 := session.Seal(sealed.Ask, request)
			if err = e; err == nil {
				err = e2
			}
			write(frames...)
		}
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return answers
}

// newBrowser pairs a device with the host and subscribes the device's browser to
// notifications.
func (h *sealedHost) newBrowser(subject string, level auth.Access, details bool) *sealedBrowser {
	h.t.Helper()
	home, relays := h.newHome(nil)
	b := &sealedBrowser{Service: pushsite.New(h.t), h: h, pairing: h.pair(home, relays, subject, level)}
	b.way = subscribe(h.t, h.Stack, b.Service, false, nil)
	keys := b.Service.Target(details).Keys
	answer := h.asks(b.pairing, map[string]any{"id": 1, "do": "push", "way": b.way.ID, "details": details, "p256dh": keys.P256dh, "auth": keys.Auth})[0]
	text, _ := answer["verifier"].(string)
	point, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(point) != len(b.verifier) {
		h.t.Fatalf("the host-agent answers %v: %v; want its signing key", answer, err)
	}
	b.verifier = sealed.Verifier(point)
	return b
}

// note waits for the next notification, decrypts it, and returns it. It fails the test
// unless the host has signed it.
func (b *sealedBrowser) note() (n sealedNote) {
	b.h.t.Helper()
	p := b.Next()
	var signed struct {
		Sealed, Body string
		Signature    []byte
	}
	if err := json.Unmarshal(p.Text, &signed); err != nil || signed.Sealed != stack.Host {
		b.h.t.Fatalf("the push is %s, %v; want a signed one of this host", p.Text, err)
	}
	if !b.verifier.IsNote(sealed.PushNote, []byte(signed.Body), signed.Signature) {
		b.h.t.Fatal("the note lacks the host's signature; want it signed")
	}
	if err := json.Unmarshal([]byte(signed.Body), &n); err != nil {
		b.h.t.Fatal(err)
	}
	if n.To != b.pairing.Device.Identity().Fingerprint().String() || n.Host != stack.Host || p.Urgency == "" {
		b.h.t.Errorf("the note %+v with urgency %q is for a different device; want this one, with an urgency", n, p.Urgency)
	}
	return n
}

// write encrypts a device's reply to an event, and returns the letter.
func (b *sealedBrowser) write(by *sealed.Device, event string, r sealed.Reply) []byte {
	b.h.t.Helper()
	letter, err := by.WriteReply(b.pairing.Key, event, r)
	if err != nil {
		b.h.t.Fatal(err)
	}
	return letter
}

// post sends a letter to the host through the relay's API. It returns the result, after
// it has checked the host's signature.
func (b *sealedBrowser) post(letter []byte) string {
	b.h.t.Helper()
	body, err := json.Marshal(map[string]any{"host": stack.Host, "letter": letter})
	if err != nil {
		b.h.t.Fatal(err)
	}
	response, err := http.Post(b.h.Relay.URL()+"/api/letters/"+b.way.ID, "application/json", bytes.NewReader(body))
	if err != nil {
		b.h.t.Fatal(err)
	}
	defer response.Body.Close()
	var said struct{ Result, Proof, Error, By string }
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil || said.Result == "" || said.By != "" {
		b.h.t.Fatalf("the answer: HTTP %d %+v, %v; want a result without a name", response.StatusCode, said, err)
	}
	proof, err := base64.RawURLEncoding.DecodeString(said.Proof)
	if err != nil || !b.verifier.IsNote(sealed.OutcomeNote, sealed.OutcomeText(letter, said.Result), proof) {
		b.h.t.Errorf("the result %q lacks the host's signature; want it signed", said.Result)
	}
	return said.Result
}

// TestSealedNotificationsAreReadAndAnswered lets an agent at a sealed host ask a
// question while no page is open. The browsers of paired devices can read the question,
// and the host accepts one browser's answer, once. The relay, NATS, a webhook and the
// event stream get no content. The relay refuses answers with tokens.
func TestSealedNotificationsAreReadAndAnswered(t *testing.T) {
	t.Parallel()
	hooked := make(chan []byte, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		hooked <- body
	}))
	t.Cleanup(hook.Close)
	var wire, logs eavesdrop.Recording
	dir := t.TempDir()
	_, server := newRefhost(t, func(cfg *agenthost.Config) { cfg.Protocol = agenthost.Protocol09 })
	h := startSealed(t, server.URL(), func(c *stack.Config) {
		*c = stack.Config{Upstream: server.URL(), Relay: onLoopback(), DataDir: dir, NATSOverTCP: true, Log: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	}, func(s *stack.Stack, agent *hostagent.Config) error {
		agent.NATSURLs = []string{"nats://" + eavesdrop.RecordTCP(t, s.Relay.NATSAddr().String(), &wire)}
		agent.Notify, agent.Log = hostagent.NotifyAll, slog.New(slog.DiscardHandler)
		return nil
	})
	owner := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	phone, shy := h.newBrowser("owner", auth.AccessApprove, true), h.newBrowser("owner", auth.AccessApprove, false)
	looks := h.newBrowser("guest", auth.AccessRead, true)
	if _, status := api[notify.Target](t, h.Stack, "POST", "/api/notify/ways", notify.Target{Kind: notify.Webhook, URL: hook.URL, Details: true}, nil); status != http.StatusOK {
		t.Fatalf("adding a webhook: HTTP %d; want 200", status)
	}
	events := follow(t, h.Stack, "", nil)

	c := join(t, h.throughConnect(h.relays), "user", nil)
	chat := ask(t, c, "demo:/a-secret-session", "t1")
	note := phone.note()
	if note.Kind != notice.Approval || note.Detail != "echo test" || note.Session != "demo:/a-secret-session" || len(note.Answers) != 2 || note.Answers[0].Deny {
		t.Errorf("the phone shows %+v; want the approval with its session, text and two answers", note)
	}
	if n := shy.note(); n.Title+n.Text+n.Detail != "" || len(n.Answers) != 1 || !n.Answers[0].Deny {
		t.Errorf("a browser without details shows %+v; want no text, and one answer, a refusal", n)
	}
	if n := looks.note(); n.Detail != "echo test" || len(n.Answers) != 0 {
		t.Errorf("a guest with the level look is shown %+v; want the command without answers", n)
	}
	plain := events.want("event", notice.Sealed)
	if e := plain.Data; e.Session+e.Title+e.Text+e.Detail+e.Chat != "" || len(e.Pushes)+len(e.Options) > 0 {
		t.Errorf("scripts read %+v; want no contents", e)
	}
	body := string(<-hooked)
	if !strings.Contains(body, "needs you") || strings.Contains(body, "echo") || strings.Contains(body, "secret") || strings.Contains(body, "answers") {
		t.Errorf("the webhook received %s; want only that an agent needs the person", body)
	}

	// The host refuses every reply except the device's own answer to this question.
	if _, status := api[map[string]string](t, h.Stack, "POST", "/api/answers/"+plain.Data.ID, map[string]string{"host": stack.Host, "option": note.Answers[0].Option}, nil); status != http.StatusForbidden {
		t.Errorf("an answer with a token: HTTP %d; want 403", status)
	}
	allows := sealed.Reply{Nonce: note.Nonce, Option: note.Answers[0].Option}
	stranger, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	changed := phone.write(phone.pairing.Device, note.ID, allows)
	i := bytes.Index(changed, []byte(`"data":"`)) + 20
	changed[i] = map[bool]byte{true: 'A', false: 'B'}[changed[i] != 'A']
	for name, refused := range map[string]struct {
		letter []byte
		result notice.Result
	}{
		"a device that is not known": {phone.write(stranger, note.ID, allows), notice.Forbidden},
		"a device that only looks":   {phone.write(looks.pairing.Device, note.ID, allows), notice.Forbidden},
		"without details":            {phone.write(shy.pairing.Device, note.ID, allows), notice.NoAnswer},
		"a changed letter":           {changed, notice.Forbidden},
		"a different nonce":          {phone.write(phone.pairing.Device, note.ID, sealed.Reply{Nonce: "A" + note.Nonce, Option: allows.Option}), notice.Unknown},
		"a different event":          {phone.write(phone.pairing.Device, "a"+note.ID, allows), notice.Unknown},
		"an answer without an offer": {phone.write(phone.pairing.Device, note.ID, sealed.Reply{Nonce: note.Nonce, Option: "allow-always"}), notice.NoAnswer},
		"no letter":                  {[]byte("{}"), notice.NoAnswer},
	} {
		if got := phone.post(refused.letter); got != string(refused.result) {
			t.Errorf("%s: %s; want %s", name, got, refused.result)
		}
	}

	letter := phone.write(phone.pairing.Device, note.ID, allows)
	for range 2 { // a browser repeats its answer if it has not received the result
		if got := phone.post(letter); got != string(notice.Given) {
			t.Errorf("the answer's outcome is %s; want given", got)
		}
	}
	if got := phone.post(phone.write(phone.pairing.Device, note.ID, allows)); got != string(notice.Unknown) {
		t.Errorf("a second answer with the same nonce: %s; want unknown", got)
	}
	awaitFrame(t, c, "chat/toolCallConfirmed")
	for name, b := range map[string]*sealedBrowser{"phone": phone, "shy": shy, "looks": looks} {
		// If the turn ends soon after the answer, the two notifications may come in either
		// order.
		withdrawn, done := b.note(), b.note()
		if done.Withdrawn {
			withdrawn, done = done, withdrawn
		}
		if !withdrawn.Withdrawn || withdrawn.ID != note.ID {
			t.Errorf("%s: after the answer, the push is %+v; want its withdrawal", name, withdrawn)
		}
		if done.Kind != notice.Done || len(done.Answers) > 0 {
			t.Errorf("%s: after the turn, the push is %+v; want done, without answers", name, done)
		}
	}
	events.want("withdrawn", notice.Sealed)
	events.want("event", notice.SealedNews)
	confirmed := 0
	for _, f := range c.Frames() {
		if bytes.Contains(f, []byte(`"chat/toolCallConfirmed"`)) {
			confirmed++
		}
	}
	if confirmed != 1 {
		t.Errorf("the host was given %d answers; want one", confirmed)
	}

	// The owner removes a device, and another device turns notifications off. Neither gets
	// a further notification.
	if _, err := h.relays.All()[0].Devices(t.Context(), stack.Host, phone.pairing.Device.Identity().Fingerprint().String()); err != nil {
		t.Fatal(err)
	}
	if answer := h.asks(looks.pairing, map[string]any{"id": 1, "do": "push"})[0]; answer["done"] != true {
		t.Errorf("turning notifications off: %v; want done", answer)
	}
	begin(t, c, chat, "t2", "permission")
	if n := shy.note(); n.Kind != notice.Approval || n.ID == note.ID || n.Nonce == note.Nonce {
		t.Errorf("the next question is %+v; want an approval with a new ID and nonce", n)
	}
	if len(phone.Pushed)+len(looks.Pushed) > 0 {
		t.Error("a removed device got a push; want none")
	}

	secrets := []string{"demo:/a-secret-session", owner.Device.Identity().Fingerprint().String()}
	for _, conn := range h.Tap.Conns() {
		secrets = append(secrets, eavesdrop.SecretsOf(slices.Concat(conn.ToHost(), conn.ToClient()))...)
	}
	slices.Sort(secrets)
	secrets = slices.DeleteFunc(slices.Compact(secrets), func(s string) bool { return strings.HasPrefix(s, "2026-") })
	for place, data := range map[string][]byte{"NATS": wire.Bytes(), "files": eavesdrop.FilesIn(t, dir), "log": logs.Bytes()} {
		if list := eavesdrop.Found(data, secrets); len(list) > 0 || len(data) < 1000 {
			t.Errorf("the %d bytes in %s contain %q; want at least 1000 bytes without secrets", len(data), place, list)
		}
	}
	if len(secrets) < 20 {
		t.Errorf("the search has %d texts; want at least 20", len(secrets))
	}
}
