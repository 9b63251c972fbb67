package notify

import (
	"context"
	"encoding/json"
	"strings"
)

// slack posts to Slack's incoming webhooks.
type slack struct{ sender }

func (s *slack) check(ctx context.Context, t *Target) error { return s.checkURL(ctx, t) }

func (s *slack) send(ctx context.Context, _ *Job, t *Target, m *Message) outcome {
	data, err := json.Marshal(map[string]any{"text": slackText(m)})
	if err != nil {
		return failed(err)
	}
	return s.post(ctx, t.URL, nil, data)
}

// slackText formats a message for Slack. It escapes all markup in the message's texts.
func slackText(m *Message) string {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "*", "\u2217", "_", "\u02cd", "`", "\u02cb", "~", "\u223c").Replace
	text := "*" + escape(m.Says) + "*"
	if more := m.body(); more != "" {
		text += "\n" + escape(more)
	}
	if m.URL != "" {
		text += "\n<" + m.URL + "|Open>"
	}
	return text
}
