package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// ntfy publishes to topics of ntfy servers.
type ntfy struct{ sender }

func (s *ntfy) check(ctx context.Context, t *Target) error {
	if err := s.checkURL(ctx, t); err != nil {
		return err
	}
	u, _ := url.Parse(t.URL) // checkURL has parsed it
	if topic := strings.Trim(u.Path, "/"); topic == "" || strings.Contains(topic, "/") || u.RawQuery != "" {
		return errors.New("url: want an ntfy topic, such as https://ntfy.sh/my-topic")
	}
	return nil
}

// redact implements service. It leaves the topic, because people need it to subscribe.
func (*ntfy) redact(t *Target) {
	if u, err := url.Parse(t.URL); err == nil && t.URL != "" {
		t.URL = u.Scheme + "://" + u.Host + u.Path
	}
}

func (s *ntfy) send(ctx context.Context, _ *Job, t *Target, m *Message) outcome {
	u, err := url.Parse(t.URL)
	if err != nil {
		return failed(err)
	}
	priority := 3
	if m.Kind.Needs() {
		priority = 4
	}
	actions := []map[string]any{}
	for _, a := range m.Answers {
		if absolute := !strings.HasPrefix(a.URL, "/"); absolute && !a.Text && len(actions) < 3 {
			actions = append(actions, map[string]any{"action": "http", "label": a.Label, "url": a.URL, "method": "POST", "clear": true})
		}
	}
	header := http.Header{}
	if t.Token != "" {
		header.Set("Authorization", "Bearer "+t.Token)
	}
	data, err := json.Marshal(map[string]any{
		"topic": strings.Trim(u.Path, "/"), "title": m.Says, "message": cmp.Or(m.body(), m.Says), "click": m.URL, "priority": priority, "actions": actions,
	})
	if err != nil {
		return failed(err)
	}
	return s.post(ctx, u.Scheme+"://"+u.Host+"/", header, data)
}
