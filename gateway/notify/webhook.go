package notify

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// webhook sends signed requests (standardwebhooks.com).
type webhook struct{ sender }

const secretPrefix = "whsec_"

func (s *webhook) check(ctx context.Context, t *Target) error {
	if t.ofTenant && t.Secret == "" {
		return errors.New("secret: a tenant's webhook requires a secret, whsec_…, equal on all relays")
	}
	if err := s.checkURL(ctx, t); err != nil {
		return err
	}
	if t.Secret == "" {
		var key [24]byte
		rand.Read(key[:]) // never fails
		t.Secret = secretPrefix + base64.StdEncoding.EncodeToString(key[:])
	}
	return checkSecret(t.Secret)
}

// checkSecret returns an error unless a secret has the form that Standard Webhooks
// requires.
func checkSecret(secret string) error {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return errors.New("secret: want whsec_ and 24 to 64 bytes in base64")
	}
	return nil
}

func (s *webhook) send(ctx context.Context, job *Job, t *Target, m *Message) outcome {
	change := Raised
	if m.Withdrawn {
		change = Withdrawn
	}
	now := time.Now()
	data, err := json.Marshal(map[string]any{"type": change, "timestamp": now.UTC(), "data": m})
	if err != nil {
		return failed(err)
	}
	id := "msg_" + cmp.Or(strings.ReplaceAll(job.ID, ".", "_"), m.ID)
	header := http.Header{}
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	header.Set("Webhook-Signature", signature(t.Secret, id, now, data))
	return s.post(ctx, t.URL, header, data)
}

func signature(secret, id string, at time.Time, data []byte) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix)) // cannot fail: check has decoded it
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), data)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
