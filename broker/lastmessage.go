package broker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// LastMessage returns the sequence and data of the newest message with a subject, which may
// contain wildcards. Both are zero if there is none. The leader of the stream's copies
// answers. A direct read or a consumer may use a copy that lags behind the leader: the
// empty copy of a relay that has just joined, for example.
func LastMessage(ctx context.Context, js jetstream.JetStream, stream, subject string) (seq uint64, data []byte, err error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return 0, nil, err
	}
	msg, err := AskAgain(ctx, func(ctx context.Context) (*nats.Msg, error) {
		return js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	})
	if err != nil {
		return 0, nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq  uint64 `json:"seq"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return 0, nil, fmt.Errorf("last message of stream %s: %w", stream, err)
	}
	switch {
	case answer.Error == nil:
		return answer.Message.Seq, answer.Message.Data, nil
	case answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return 0, nil, nil
	}
	return 0, nil, answer.Error
}
