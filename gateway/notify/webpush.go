package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	webpush "github.com/SherClockHolmes/webpush-go"

	"ahprelay/broker/notice"
)

// PushKeys holds a browser's subscription keys.
type PushKeys struct {
	P256dh string `json:"p256dh"`
	Auth   string `json:"auth"`
}

// webPush sends notifications through browsers' push services.
type webPush struct {
	sender
	contact string
	keys    *pushKeyring
}

func (p *webPush) check(ctx context.Context, t *Target) error {
	if t.ofTenant {
		return errors.New("kind: a browser belongs to one person; want ntfy, slack, webhook or mail")
	}
	if err := p.checkURL(ctx, t); err != nil {
		return err
	}
	t.PushKey = cmp.Or(t.PushKey, p.keys.current())
	return t.Keys.check()
}

func (k *PushKeys) check() error {
	if k == nil {
		return errors.New("keys are missing; give p256dh and auth of the browser's push subscription")
	}
	point, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(k.P256dh, "="))
	if err == nil {
		_, err = ecdh.P256().NewPublicKey(point)
	}
	secret, err2 := base64.RawURLEncoding.DecodeString(strings.TrimRight(k.Auth, "="))
	if err != nil || err2 != nil || len(secret) != 16 {
		return errors.New("keys are invalid; give p256dh and auth of the browser's push subscription")
	}
	return nil
}

// maxPush is the longest message to a browser in bytes. Push services accept 4,096 bytes,
// including the overhead of encryption.
const maxPush = 3900

// A forwarder sends a body that a sealed host has encrypted, instead of the body made by
// the library.
type forwarder struct {
	client *http.Client
	body   []byte
}

func (f forwarder) Do(r *http.Request) (*http.Response, error) {
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(f.body)), int64(len(f.body)), nil
	return f.client.Do(r)
}

// send implements service. It sets a topic, so that the push service keeps only the latest message
// about an event.
func (p *webPush) send(ctx context.Context, job *Job, t *Target, m *Message) outcome {
	key, ok := p.keys.find(t.PushKey)
	if !ok {
		return failed(errors.New("no key for push services"))
	}
	var client webpush.HTTPClient = p.client
	if job.Event.Kind.IsSealed() {
		if push := job.Event.Push(t.ID); t.decrypts(push) {
			client = forwarder{p.client, push.Data}
		}
	}
	data, err := json.Marshal(m)
	if len(data) > maxPush { // titles may be long
		m.Detail, m.Text, m.Answers, m.Chat = notice.Cut(m.Detail, 200), notice.Cut(m.Text, 200), nil, ""
		data, err = json.Marshal(m)
	}
	if err != nil {
		return failed(err)
	}
	urgency := webpush.UrgencyNormal
	if m.Kind.Needs() {
		urgency = webpush.UrgencyHigh
	}
	response, err := webpush.SendNotificationWithContext(ctx, data, &webpush.Subscription{
		Endpoint: t.URL, Keys: webpush.Keys{P256dh: t.Keys.P256dh, Auth: t.Keys.Auth},
	}, &webpush.Options{
		HTTPClient: client, Subscriber: p.contact, VAPIDPublicKey: key.Public, VAPIDPrivateKey: key.Private,
		TTL: int(momentsFor / time.Second), Urgency: urgency, Topic: topic(m.ID),
	})
	if errors.Is(err, webpush.ErrMaxPadExceeded) {
		return outcome{result: Refused, why: "the message is too long"}
	}
	return judge(response, err, http.StatusGone, http.StatusNotFound)
}

// topic returns an event's topic for push services, which has at most 32 characters.
func topic(id string) string { return id[:min(len(id), 32)] }
