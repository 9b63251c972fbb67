package watch_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

// A script is a connection to a host that sends prepared messages and then ends.
type script struct {
	says [][]byte
	done context.CancelFunc
}

func (s *script) Read() ([]byte, bool, error) {
	if len(s.says) == 0 {
		s.done()
		return nil, false, io.EOF
	}
	message := s.says[0]
	s.says = s.says[1:]
	return message, false, nil
}

func (s *script) Write([]byte, bool) error { return nil }
func (s *script) Close(string)             {}

// hear runs a Watch until it has read all these messages.
func hear(ledger *notice.Ledger, says [][]byte) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch.New(watch.Config{
		Ledger: ledger, Moments: true, Log: slog.New(slog.DiscardHandler),
		Dial: func(context.Context) (watch.Socket, error) { return &script{says, cancel}, nil },
	}).Run(ctx)
}

var greeting = [][]byte{
	[]byte(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0"}}`),
	[]byte(`{"jsonrpc":"2.0","id":2,"result":{"items":[{"resource":"s:/1","status":8,"title":"one"}]}}`),
}

// BenchmarkSummary measures how long the Watch takes for a changed session summary.
func BenchmarkSummary(b *testing.B) {
	says := append([][]byte{}, greeting...)
	for i := range b.N {
		says = append(says, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"s:/%d","changes":{"title":"Fix the build","status":8,"modifiedAt":"2026-11-21T02:56:52.287Z","changes":{"additions":0,"deletions":0,"files":0}}}}`, i%10))
	}
	b.ReportAllocs()
	b.ResetTimer()
	hear(notice.NewLedger("a"), says)
}

// FuzzHost feeds a Watch with a host's messages. No message may cause a panic, or an event above
// its bounds.
func FuzzHost(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","method":"root/sessionSummaryChanged","params":{"session":"s:/1","changes":{"status":24}}}`),
		[]byte(`{"jsonrpc":"2.0","id":3,"result":{"snapshot":{"resource":"s:/1","state":{"inputNeeded":[{"id":"q","kind":"toolConfirmation","chat":"c:/1","turnId":"t","toolCall":{"toolCallId":"1","status":"pending-confirmation","confirmationTitle":{"markdown":"Run"},"toolInput":"make","edits":{"items":[{}]},"riskAssessment":{"kind":"judge","status":"complete","safety":0.2},"options":[{"id":"a","label":"Allow","kind":"approve"}]}}]}}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"root/sessionAdded","params":{"summary":{"resource":"s:/2","status":24,"title":"two"}}}`),
		[]byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"s:/2","action":{"type":"session/inputNeededSet","request":{"id":"q","kind":"chatInput","chat":"c:/1","request":{"id":"r","message":"Which?","questions":[{"id":"w","kind":"single-select","message":"Which?","options":[{"id":"a","label":"A"}]}]}}}}}`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		ledger := notice.NewLedger("a")
		hear(ledger, append(append([][]byte{}, greeting...), first, second))
		ledger.Ready()
		report, _ := ledger.Report(true)
		for i := range report.Events {
			if err := report.Events[i].Check(); err != nil {
				t.Error(err)
			}
		}
	})
}
