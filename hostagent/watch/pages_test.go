package watch_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
)

// A pagingHost is a connection to a host that lists one session in each page. The last session needs
// input.
type pagingHost struct {
	sessions []string
	before   func(page int) string // a notification before a page, or ""
	floats   bool                  // the host writes numbers as floating point
	refused  func(page int) bool   // the host answers a page with an error; nil: none
	messages chan string
}

func (h *pagingHost) Read() ([]byte, bool, error) {
	message, ok := <-h.messages
	if !ok {
		return nil, false, io.EOF
	}
	return []byte(message), false, nil
}

func (h *pagingHost) Write(message []byte, _ bool) error {
	env, err := ahp.Peek(message)
	if err != nil {
		return err
	}
	result := `{}`
	switch string(env.Method) {
	case "listSessions":
		page := 0
		_, _ = fmt.Sscan(ahp.TextOf(env.Params, "cursor"), &page)
		if note := h.before(page); note != "" {
			h.messages <- note
		}
		if h.refused != nil && h.refused(page) {
			h.messages <- string(ahp.AppendError(nil, env.ID, ahp.CodeInvalidParams, "Unrecognized cursor", nil))
			return nil
		}
		status, next := 1, fmt.Sprintf(`,"nextCursor":"%d"`, page+1)
		if page == len(h.sessions)-1 {
			status, next = 24, ""
		}
		point := ""
		if h.floats {
			point = ".0"
		}
		result = fmt.Sprintf(`{"items":[{"resource":%q,"status":%d%s}]%s}`, h.sessions[page], status, point, next)
	case "subscribe":
		result = fmt.Sprintf(`{"snapshot":{"resource":%q,"fromSeq":1,"state":{"inputNeeded":[{"id":"q","chat":"ahp-chat:/1","kind":"chatInput","request":{"id":"r","message":"Go on?"}}]}}}`, env.Channel)
	}
	if h.floats {
		env.ID = append(env.ID[:len(env.ID):len(env.ID)], ".0"...)
	}
	if env.Kind == ahp.Request {
		h.messages <- string(ahp.AppendResult(nil, env.ID, []byte(result)))
	}
	return nil
}

func (h *pagingHost) Close(string) {}

// TestSessionsOfAllPagesAreWatched has a host that lists its sessions in pages, and connects twice.
// The question of the last session must stay open over the second connection, and Listed must be
// called after the last page. Only the session that the host removes between two pages must be
// forgotten. The host writes numbers as floating point.
func TestSessionsOfAllPagesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone, events []string
		var host *pagingHost
		ledger := notice.NewLedger("agent")
		ctx, cancel := context.WithCancel(t.Context())
		w := watch.New(watch.Config{
			Ledger: ledger, Log: slog.New(slog.DiscardHandler),
			Dial: func(context.Context) (watch.Socket, error) {
				host = &pagingHost{sessions: []string{"x:/0", "x:/1", "x:/2"}, messages: make(chan string, 16), floats: true}
				host.before = func(page int) string {
					if page == 2 && slices.Contains(events, "listed") {
						return `{"method":"root/sessionRemoved","params":{"channel":"ahp-root://","session":"x:/1"}}`
					}
					return ""
				}
				events = append(events, "dialled")
				return host, nil
			},
			Summary: func(session string, members []byte, _ bool) {
				if events = append(events, session); members == nil {
					gone = append(gone, session)
				}
			},
			Listed: func() { events = append(events, "listed") },
		})
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		for range 2 {
			time.Sleep(settle)
			synctest.Wait()
			report, _ := ledger.Report(true)
			if len(report.Open) != 1 {
				t.Errorf("the open questions are %q; want one", report.Open)
			}
			ledger.Sent(&notice.Ack{Seq: report.Seq})
			close(host.messages)
		}
		cancel()
		<-ended
		if diff := cmp.Diff([]string{"x:/1"}, gone); diff != "" {
			t.Errorf("the forgotten sessions (-want +got):\n%s", diff)
		}
		if got, want := strings.Join(events, " "), "dialled x:/0 x:/1 x:/2 listed dialled x:/0 x:/1 x:/1 x:/2 listed"; got != want {
			t.Errorf("the events are %q; want %q", got, want)
		}
	})
}

// TestListGoesOnAfterAnOldCursor has a host that refuses the cursor of its second page, because its list has changed meanwhile. The
// Watch must request the list again on the same connection. If the host refuses that page again, the Watch connects a minute later.
func TestListGoesOnAfterAnOldCursor(t *testing.T) {
	for refusals, want := range map[int]string{1: "x:/0 x:/0 x:/1 listed", 2: "x:/0 x:/0"} {
		synctest.Test(t, func(t *testing.T) {
			var events []string
			host := &pagingHost{sessions: []string{"x:/0", "x:/1"}, before: func(int) string { return "" }, messages: make(chan string, 16)}
			host.refused = func(page int) bool {
				if page == 1 {
					refusals--
				}
				return page == 1 && refusals >= 0
			}
			ctx, cancel := context.WithCancel(t.Context())
			w := watch.New(watch.Config{
				Ledger: notice.NewLedger("agent"), Log: slog.New(slog.DiscardHandler),
				Dial:    func(context.Context) (watch.Socket, error) { return host, nil },
				Summary: func(session string, _ []byte, _ bool) { events = append(events, session) },
				Listed:  func() { events = append(events, "listed") },
			})
			ended := make(chan struct{})
			go func() { defer close(ended); w.Run(ctx) }()
			time.Sleep(settle)
			synctest.Wait()
			if got := strings.Join(events, " "); got != want {
				t.Errorf("the events are %q; want %q", got, want)
			}
			cancel()
			close(host.messages)
			<-ended
		})
	}
}

// TestEndlessListsEnd has a host that names a next page in each page. The Watch must stop to request
// pages, and report what it knows.
func TestEndlessListsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pages, listed := 0, 0
		host := &pagingHost{sessions: slices.Repeat([]string{"x:/0"}, 10_000), messages: make(chan string, 16)}
		host.before = func(int) string { pages++; return "" }
		ctx, cancel := context.WithCancel(t.Context())
		w := watch.New(watch.Config{
			Ledger: notice.NewLedger("agent"), Log: slog.New(slog.DiscardHandler), Listed: func() { listed++ },
			Dial: func(context.Context) (watch.Socket, error) { return host, nil },
		})
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		time.Sleep(settle)
		synctest.Wait()
		if pages > 4096 || listed != 1 {
			t.Errorf("the Watch has requested %d pages, and called Listed %d times; want at most 4096, and 1", pages, listed)
		}
		cancel()
		close(host.messages)
		<-ended
	})
}

// TestResultsHaveEventsOfTheirOwn has a host that uses the id of a tool call's approval again for the
// approval of its result, as VS Code does: with the removal in between, and without it. The approvals
// must be different events, because relays notify of each event once. Each must take one answer.
func TestResultsHaveEventsOfTheirOwn(t *testing.T) {
	for _, removes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ledger := notice.NewLedger("agent")
			host := &pagingHost{sessions: []string{"x:/0"}, before: func(int) string { return "" }, messages: make(chan string, 16)}
			ctx, cancel := context.WithCancel(t.Context())
			w := watch.New(watch.Config{
				Ledger: ledger, Log: slog.New(slog.DiscardHandler),
				Dial: func(context.Context) (watch.Socket, error) { return host, nil },
			})
			ended := make(chan struct{})
			go func() { defer close(ended); w.Run(ctx) }()
			says := func(action string) {
				host.messages <- `{"method":"action","params":{"channel":"x:/0","serverSeq":5,"action":` + action + `}}`
				synctest.Wait()
			}
			asks := func(status string) (id string) {
				says(`{"type":"session/inputNeededSet","request":{"id":"q","kind":"toolConfirmation","chat":"ahp-chat:/1","turnId":"1","toolCall":{"toolCallId":"c","status":"` + status + `","displayName":"Shell"}}}`)
				report, _ := ledger.Report(true)
				if len(report.Open) != 1 {
					t.Fatalf("the open events are %q; want one", report.Open)
				}
				return report.Open[0]
			}
			answers := func(id, by, want string) {
				t.Helper()
				e, _ := ledger.Open(id)
				answer, err := w.Answer(id, e.Digest(), by, watch.Reply{Option: "allow"})
				switch got := fmt.Sprint(err); {
				case err != nil && got != want:
					t.Errorf("the answer of %s: %s; want %s", by, got, want)
				case err == nil && ahp.TextOf(answer.Action, "type") != want:
					t.Errorf("the answer of %s is %s; want a %s", by, answer.Action, want)
				}
			}
			synctest.Wait()
			call := asks("pending-confirmation")
			answers(call, "ada", "chat/toolCallConfirmed")
			if removes {
				says(`{"type":"session/inputNeededRemoved","id":"q"}`)
			}
			result := asks("pending-result-confirmation")
			if result == call {
				t.Error("the approvals of call and result are one event; want two")
			}
			answers(call, "bob", "already answered by ada")
			answers(result, "bob", "chat/toolCallResultConfirmed")
			answers(result, "eve", "already answered by bob")
			cancel()
			close(host.messages)
			<-ended
		})
	}
}

// A readHook calls read before it returns each message of the host.
type readHook struct {
	*pagingHost
	read func(message string)
}

func (h readHook) Read() ([]byte, bool, error) {
	message, binary, err := h.pagingHost.Read()
	h.read(string(message))
	return message, binary, err
}

// TestRelistBetweenPages calls Relist while the host lists its sessions in pages, as when a person shows a
// private session again. Summary must then get the whole summary of each session again, also of those in
// the pages before the call.
func TestRelistBetweenPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *watch.Watch
		var events []string
		host := &pagingHost{sessions: []string{"x:/0", "x:/1", "x:/2"}, before: func(int) string { return "" }, messages: make(chan string, 16)}
		ctx, cancel := context.WithCancel(t.Context())
		w = watch.New(watch.Config{
			Ledger: notice.NewLedger("agent"), Log: slog.New(slog.DiscardHandler),
			Dial: func(context.Context) (watch.Socket, error) {
				return readHook{host, func(message string) {
					if strings.Contains(message, "items") && slices.Contains(events, "x:/1") && !slices.Contains(events, "relist") {
						events = append(events, "relist")
						w.Relist()
					}
				}}, nil
			},
			Summary: func(session string, _ []byte, _ bool) { events = append(events, session) },
			Listed:  func() { events = append(events, "listed") },
		})
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		time.Sleep(settle)
		synctest.Wait()
		if got, want := strings.Join(events, " "), "x:/0 x:/1 relist x:/2 listed x:/0 x:/1 x:/2 listed"; got != want {
			t.Errorf("the events are %q; want %q", got, want)
		}
		cancel()
		close(host.messages)
		<-ended
	})
}
