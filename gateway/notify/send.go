package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	webpush "github.com/SherClockHolmes/webpush-go"
	gomail "github.com/wneessen/go-mail"

	"ahprelay/auth"
	"ahprelay/broker/notice"
)

// A PushKey is the relay's for push services (VAPID, RFC 8292), in base64.
type PushKey struct {
	Public  string `json:"public"`
	Private string `json:"private"`
}

// NewPushKey makes one.
func NewPushKey() (*PushKey, error) {
	private, public, err := webpush.GenerateVAPIDKeys()
	return &PushKey{public, private}, err
}

// A MailConfig says how mail is sent.
type MailConfig struct {
	URL  string // smtp://user:password@host:587, with STARTTLS, or smtps://…:465
	From string
}

// Client returns what sends mail.
func (m *MailConfig) client() (*gomail.Client, error) {
	u, err := url.Parse(m.URL)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" {
		return nil, errors.New("--notify-smtp: want smtp://user:password@host:587, or smtps://…")
	}
	opts := []gomail.Option{gomail.WithTimeout(sendTimeout), gomail.WithTLSPortPolicy(gomail.TLSMandatory)}
	switch {
	case u.Scheme == "smtps":
		opts = append(opts, gomail.WithSSLPort(false))
	case u.Query().Get("tls") == "no": // for a server on this machine
		opts = append(opts, gomail.WithTLSPortPolicy(gomail.NoTLS))
	}
	if u.Port() != "" {
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			return nil, err
		}
		opts = append(opts, gomail.WithPort(port))
	}
	if password, ok := u.User.Password(); ok {
		opts = append(opts, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(u.User.Username()), gomail.WithPassword(password))
	}
	return gomail.NewClient(u.Hostname(), opts...)
}

// Check reports what is wrong with it.
func (m *MailConfig) Check() error {
	if err := gomail.NewMsg().From(m.From); err != nil {
		return fmt.Errorf("--notify-mail-from: %w", err)
	}
	_, err := m.client()
	return err
}

// A Message is what somebody is told.
type Message struct {
	ID        string      `json:"id"`
	Kind      notice.Kind `json:"kind"`
	Host      string      `json:"host,omitempty"`
	Session   string      `json:"session,omitempty"`
	Title     string      `json:"title,omitempty"` // with details only, as of the next two
	Text      string      `json:"text,omitempty"`
	Detail    string      `json:"detail,omitempty"`
	Risky     bool        `json:"risky,omitempty"`
	At        time.Time   `json:"at"`
	URL       string      `json:"url,omitempty"`       // of the console, at the session
	Withdrawn bool        `json:"withdrawn,omitempty"` // nothing is to be done any more
	Answers   []Answer    `json:"answers,omitempty"`
	Says      string      `json:"says"` // in one line, for people
}

// An Answer is one that can be given from a message, once: POST to the URL.
type Answer struct {
	Label string `json:"label"`
	Deny  bool   `json:"deny,omitempty"`
	Text  bool   `json:"text,omitempty"` // with words, as {"text": "…"}
	URL   string `json:"url"`            // without a public URL of the relay its path
}

// says are the words for kinds.
var says = map[notice.Kind]string{
	notice.Approval: "needs your approval", notice.Question: "asks you something", notice.SignIn: "needs you to sign in", notice.Input: "needs you",
	notice.Done: "is done", notice.Failed: "has failed", notice.Offline: "cannot be reached", notice.Joined: "is being watched", notice.Test: "this is a test",
}

// message makes the message of a job.
func (t *Teller) message(job *Job, w *Way, who auth.Client) Message {
	e := &job.Event
	m := Message{ID: e.ID, Kind: e.Kind, Host: job.Host, Session: e.Session, At: e.At, Withdrawn: job.Withdrawn, Risky: e.Risky}
	if t.cfg.PublicURL != "" {
		m.URL = t.cfg.PublicURL + "/#" + url.Values{"host": {job.Host}, "session": {e.Session}}.Encode()
	}
	if w.Details {
		m.Title, m.Text, m.Detail = e.Title, e.Text, e.Detail
	}
	what := cmp.Or(m.Title, job.Host)
	if e.Kind == notice.Test {
		what, m.Text, m.URL = "AHP relay", e.Text, t.cfg.PublicURL
	} else if m.Title != "" {
		what += " on " + job.Host
	}
	m.Says = what + ": " + says[e.Kind]
	// A message without details shows nothing that could be allowed; anything can be refused.
	form, options := e.FromAfar() // a host-agent of an older version tells more
	if form == notice.Text {
		options = append(slices.Clone(options), notice.Option{Label: "Reply"})
	}
	for _, o := range options {
		if job.Withdrawn || form == notice.NoForm || t.cfg.Capability == nil || !w.Details && !o.Deny {
			continue
		}
		if capability := t.cfg.Capability(job, who, o); capability != "" {
			m.Answers = append(m.Answers, Answer{o.Label, o.Deny, o.ID == "", t.cfg.PublicURL + "/api/answers/" + capability})
		}
	}
	return m
}

// send tells somebody, or says why not.
func (t *Teller) send(ctx context.Context, job *Job, w *Way, who auth.Client) outcome {
	m := t.message(job, w, who)
	if w.Kind == Mail {
		return t.sendMail(ctx, job, w, &m)
	}
	var response *http.Response
	var err error
	switch w.Kind {
	case WebPush:
		response, err = t.push(ctx, w, &m)
	case Ntfy:
		response, err = t.ntfy(ctx, w, &m)
	case Slack:
		response, err = t.post(ctx, w.URL, nil, map[string]any{"text": slackText(&m)})
	case Webhook:
		response, err = t.hook(ctx, job, w, &m)
	}
	if err != nil {
		return failed(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // so that the connection can be used again
	return judge(response, w.Kind)
}

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 4 << 10

// failed says what became of an attempt that got no answer. What went wrong on the
// way is for the log of whoever owns the way, in few words: where names lead is
// nobody's business.
func failed(err error) outcome {
	switch {
	case errors.Is(err, errPrivate):
		return outcome{name: "refused", why: errPrivate.Error()}
	case errors.Is(err, webpush.ErrMaxPadExceeded):
		return outcome{name: "refused", why: "the message is too long"}
	}
	return outcome{name: "retry", why: "no answer"}
}

// judge says what an answer means.
func judge(response *http.Response, kind WayKind) outcome {
	why := "HTTP " + strconv.Itoa(response.StatusCode)
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return outcome{name: "ok"}
	case status == http.StatusGone, status == http.StatusNotFound && kind == WebPush:
		return outcome{name: "gone", why: why}
	case status == http.StatusTooManyRequests, status >= 500, status == http.StatusRequestTimeout:
		after, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return outcome{name: "retry", why: why, after: time.Duration(min(max(after, 0), int(mostObeyed/time.Second))) * time.Second}
	}
	return outcome{name: "refused", why: why}
}

// push sends to a browser's push service. Topic has the service keep the latest of
// an event only.
func (t *Teller) push(ctx context.Context, w *Way, m *Message) (*http.Response, error) {
	key, ok := t.pushKey(w.PushKey)
	if !ok {
		return nil, errors.New("no key for push services")
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) > maxPush { // titles may be long
		m.Detail, m.Text = notice.Cut(m.Detail, 200), notice.Cut(m.Text, 200)
		m.Answers = nil
		if data, err = json.Marshal(m); err != nil {
			return nil, err
		}
	}
	urgency := webpush.UrgencyNormal
	if m.Kind.Needs() {
		urgency = webpush.UrgencyHigh
	}
	return webpush.SendNotificationWithContext(ctx, data, &webpush.Subscription{
		Endpoint: w.URL, Keys: webpush.Keys{P256dh: w.Keys.P256dh, Auth: w.Keys.Auth},
	}, &webpush.Options{
		HTTPClient: t.http, Subscriber: t.cfg.Contact, VAPIDPublicKey: key.Public, VAPIDPrivateKey: key.Private,
		TTL: int(momentsFor / time.Second), Urgency: urgency, Topic: topic(m.ID),
	})
}

// maxPush is how long a message to a browser may be, in bytes: services take 4,096
// with what encryption adds.
const maxPush = 3900

// topic is an event's for push services: at most 32 characters.
func topic(id string) string { return id[:min(len(id), 32)] }

// post sends JSON.
func (t *Teller) post(ctx context.Context, to string, header http.Header, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "ahp-relay")
	return t.http.Do(r)
}

// ntfy publishes to a topic, with answers as buttons.
func (t *Teller) ntfy(ctx context.Context, w *Way, m *Message) (*http.Response, error) {
	u, err := url.Parse(w.URL)
	if err != nil {
		return nil, err
	}
	priority := 3
	if m.Kind.Needs() {
		priority = 4
	}
	actions := []map[string]any{}
	for _, a := range m.Answers {
		if t.cfg.PublicURL != "" && !a.Text && len(actions) < 3 {
			actions = append(actions, map[string]any{"action": "http", "label": a.Label, "url": a.URL, "method": "POST", "clear": true})
		}
	}
	header := http.Header{}
	if w.Token != "" {
		header.Set("Authorization", "Bearer "+w.Token)
	}
	return t.post(ctx, u.Scheme+"://"+u.Host+"/", header, map[string]any{
		"topic": strings.Trim(u.Path, "/"), "title": m.Says, "message": cmp.Or(body(m), m.Says), "click": m.URL, "priority": priority, "actions": actions,
	})
}

// body is what a message says beside its one line.
func body(m *Message) string {
	text := m.Text
	if m.Detail != "" {
		text += "\n" + m.Detail
	}
	if m.Risky {
		text += "\nThe host does not think it safe."
	}
	return strings.TrimSpace(text)
}

// slackText writes a message for Slack, in which nothing is a command of its.
func slackText(m *Message) string {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "*", "\u2217", "_", "\u02cd", "`", "\u02cb", "~", "\u223c").Replace
	text := "*" + escape(m.Says) + "*"
	if more := body(m); more != "" {
		text += "\n" + escape(more)
	}
	if m.URL != "" {
		text += "\n<" + m.URL + "|Open>"
	}
	return text
}

// hook sends a signed request (standardwebhooks.com).
func (t *Teller) hook(ctx context.Context, job *Job, w *Way, m *Message) (*http.Response, error) {
	change := Raised
	if m.Withdrawn {
		change = Withdrawn
	}
	now := time.Now()
	data, err := json.Marshal(map[string]any{"type": change, "timestamp": now.UTC(), "data": m})
	if err != nil {
		return nil, err
	}
	id := "msg_" + cmp.Or(strings.ReplaceAll(job.ID, ".", "_"), m.ID)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "ahp-relay")
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("Webhook-Signature", signature(w.Secret, id, now, data))
	return t.http.Do(r)
}

// signature signs a webhook's message.
func signature(secret, id string, at time.Time, data []byte) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix)) // it was checked
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), data)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// sendMail sends mail.
func (t *Teller) sendMail(ctx context.Context, job *Job, w *Way, m *Message) outcome {
	t.mu.Lock()
	may := takeLocked(t.mails, [2]string{job.Tenant, job.Subject}, mailsInHour, time.Hour/mailsInHour)
	t.mu.Unlock()
	if t.cfg.Mail == nil || !may {
		return outcome{name: "refused", why: "too many mails in an hour, or none are sent"}
	}
	client, err := t.cfg.Mail.client()
	msg := gomail.NewMsg()
	if err == nil {
		err = errors.Join(msg.From(t.cfg.Mail.From), msg.To(w.To))
	}
	if err != nil {
		return outcome{name: "refused", why: "the relay's settings for mail are wrong"}
	}
	msg.Subject(m.Says)
	msg.SetBodyString(gomail.TypeTextPlain, strings.TrimSpace(m.Says+"\n\n"+body(m)+"\n\n"+m.URL)+"\n")
	if err := client.DialAndSendWithContext(ctx, msg); err != nil {
		var send *gomail.SendError
		if errors.As(err, &send) && !send.IsTemp() && send.ErrorCode() >= 500 {
			return outcome{name: "refused", why: "the mail server refuses it"}
		}
		return outcome{name: "retry", why: "the mail server does not take it now"}
	}
	return outcome{name: "ok"}
}
