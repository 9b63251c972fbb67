package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// LastMessage returns the newest message with a subject, which may contain wildcards, or nil if
// there is none. The leader of the stream's copies answers. A direct read or a consumer may use
// a copy that lags behind the leader: the empty copy of a relay that has just joined, for example.
func LastMessage(ctx context.Context, js jetstream.JetStream, stream, subject string) (*jetstream.RawStreamMsg, error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, err
	}
	msg, err := AskAgain(ctx, func(ctx context.Context) (*nats.Msg, error) {
		return js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return nil, fmt.Errorf("last message of stream %s: %w", stream, err)
	}
	switch m := answer.Message; {
	case answer.Error == nil:
		last := &jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Data: m.Data, Time: m.Time}
		if len(m.Header) > 0 {
			last.Header, err = nats.DecodeHeadersMsg(m.Header)
		}
		return last, err
	case answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	}
	return nil, answer.Error
}
