package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"pgregory.net/rapid"

	"ahprelay/ahp"
)

// newTest returns a Tracer with the given sampler, and a recorder with its spans.
func newTest(t testing.TB, sampler, arg string) (*Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	root, parentBased, err := samplerOf(sampler, arg)
	if err != nil {
		t.Fatal(err)
	}
	spans := tracetest.NewSpanRecorder()
	tracer, err := newTracer(sdktrace.WithSpanProcessor(spans), root, parentBased, Service{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return tracer, spans
}

func peek(t testing.TB, message string) *ahp.Envelope {
	t.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	return &env
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"

// TestBothEndsAgree traces a request at the relay and at the host-agent, with random samplers and
// clients. Either both must record it or neither. The spans must be in the same trace, the
// host-agent's below the relay's.
func TestBothEndsAgree(t *testing.T) {
	samplers := []string{"", "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	rapid.Check(t, func(rt *rapid.T) {
		sampler := rapid.SampledFrom(samplers).Draw(rt, "sampler")
		of := Connection{ID: rapid.StringN(1, 12, 12).Draw(rt, "connection"), Full: rapid.Bool().Draw(rt, "full")}
		flags := rapid.SampledFrom([]string{"00", "01"}).Draw(rt, "flags")
		said := rapid.SampledFrom([]string{"", parent + flags, "nonsense"}).Draw(rt, "traceparent")
		of.Traceparent = rapid.SampledFrom([]string{"", "00-11111111111111111111111111111111-2222222222222222-01"}).Draw(rt, "header")
		request := peek(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscribe","params":{"channel":"ahp-chat:/1","_meta":{"traceparent":%q}}}`, rapid.Int().Draw(rt, "id"), said))

		relay, above := newTest(t, sampler, "0.5")
		agent, below := newTest(t, sampler, "0.5")
		first, second := relay.Conn(of), agent.Conn(of)
		first.Relay(request, 10).Sent(nil)
		second.HostAgent(request, 10, time.Now()).ToHost()
		first.Close()
		second.Close()
		up, down := above.Ended(), below.Ended()
		if len(up) != len(down) || len(up) != 0 && len(up) != 2 {
			rt.Fatalf("%d spans of the relay, %d of the host-agent; want two each or none", len(up), len(down))
		}
		if len(up) == 0 {
			return
		}
		publish, server, host, consumer := up[0], up[1], down[0], down[1]
		for _, s := range []sdktrace.ReadOnlySpan{server, host, consumer} {
			if s.SpanContext().TraceID() != publish.SpanContext().TraceID() {
				rt.Errorf("the span %s is in a different trace; want the publisher's", s.Name())
			}
		}
		if publish.Parent().SpanID() != server.SpanContext().SpanID() || consumer.Parent().SpanID() != publish.SpanContext().SpanID() || host.Parent().SpanID() != consumer.SpanContext().SpanID() {
			rt.Errorf("a span has the wrong parent; want server, publish, consumer and host in a row")
		}
		want := "" // parent of the relay's span: from the client, or ""
		switch {
		case !of.Full:
		case said == parent+flags:
			want = "0af7651916cd43dd8448eb211c80319c/b7ad6b7169203331"
		case of.Traceparent != "":
			want = "11111111111111111111111111111111/2222222222222222"
		}
		got := ""
		if p := server.Parent(); p.IsValid() {
			got = p.TraceID().String() + "/" + p.SpanID().String()
		}
		if got != want {
			rt.Errorf("the relay's span is below %q; want %q", got, want)
		}
	})
}

// TestEachOutcomeIsRecorded ends a request with an answer, one whose host writes the id in another way, an error, an answer from a gate, and the
// end of its connection. The span must end once, with the right outcome and attributes.
func TestEachOutcomeIsRecorded(t *testing.T) {
	request := peek(t, `{"jsonrpc":"2.0","id":"x","method":"subscribe","params":{"channel":"mcp://host/1"}}`)
	for _, test := range []struct {
		outcome string
		end     func(c *ConnTracer, r *Request)
		status  codes.Code
	}{
		{"ok", func(c *ConnTracer, r *Request) { c.Answered(peek(t, `{"jsonrpc":"2.0","id":"x","result":{}}`), 7) }, codes.Unset},
		{"ok", func(c *ConnTracer, r *Request) { c.Answered(peek(t, `{"jsonrpc":"2.0","id":"\u0078","result":{}}`), 7) }, codes.Unset},
		{"error", func(c *ConnTracer, r *Request) {
			c.Answered(peek(t, `{"jsonrpc":"2.0","id":"x","error":{"code":-32009,"message":"no"}}`), 7)
		}, codes.Error},
		{"error", func(c *ConnTracer, r *Request) {
			c.Answered(peek(t, `{"jsonrpc":"2.0","id":"x","error":{"code":-32009.0,"message":"no"}}`), 7)
		}, codes.Error},
		{"answered by a gate", func(_ *ConnTracer, r *Request) { r.AnsweredHere() }, codes.Unset},
		{"closed", func(c *ConnTracer, _ *Request) { c.Close() }, codes.Error},
	} {
		tracer, spans := newTest(t, "", "")
		c := tracer.Conn(Connection{ID: "1", Tenant: "acme", Host: "laptop"})
		r := c.HostAgent(request, 10, time.Now())
		c.Answered(peek(t, `{"jsonrpc":"2.0","id":"y","result":{}}`), 7) // another request's answer
		c.Answered(peek(t, `{"jsonrpc":"2.0","id":"x","method":"ping"}`), 7)
		if len(spans.Ended()) != 0 {
			t.Fatalf("%s: a span ended before the request's answer; want none", test.outcome)
		}
		test.end(c, r)
		c.Close()
		if len(spans.Ended()) != 1 || c.Waits() {
			t.Fatalf("%s: %d spans ended; want 1", test.outcome, len(spans.Ended()))
		}
		span := spans.Ended()[0]
		is := attribute.NewSet(span.Attributes()...)
		for key, want := range map[attribute.Key]string{
			"ahp.outcome": test.outcome, "rpc.method": "subscribe", "ahp.tenant": "acme", "ahp.host": "laptop", "ahp.conn": "1", "ahp.channel.scheme": "mcp", "ahp.request.size": "10",
		} {
			if got, _ := is.Value(key); got.String() != want {
				t.Errorf("%s: %s is %q; want %q", test.outcome, key, got.String(), want)
			}
		}
		if got, _ := is.Value("error.type"); test.outcome == "error" && got.String() != "-32009" {
			t.Errorf("the error is %q; want -32009", got.String())
		}
		if span.Status().Code != test.status {
			t.Errorf("%s: status %v; want %v", test.outcome, span.Status(), test.status)
		}
		if c.Relay(request, 1) != nil {
			t.Errorf("%s: a request without an answer makes a span when its connection ends; want none", test.outcome)
		}
	}
}

// TestOpenRequestsAreBounded opens more requests on a connection than the bound, with long texts.
// Requests beyond the bound, and those with long ids, must not be traced. All attributes must be
// short.
func TestOpenRequestsAreBounded(t *testing.T) {
	tracer, spans := newTest(t, "", "")
	c := tracer.Conn(Connection{ID: "1"})
	for i := range maxOpen + 1 {
		r := c.Relay(peek(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"channel":%q}`, i, strings.Repeat("m", 1000), strings.Repeat("s", 1000)+":/1")), 1)
		if (r != nil) != (i < maxOpen) {
			t.Errorf("request %d is traced: %v; want only the first maxOpen", i, r != nil)
		}
		r.Sent(nil)
	}
	if c.Relay(peek(t, `{"jsonrpc":"2.0","id":"`+strings.Repeat("i", maxID)+`","method":"ping"}`), 1) != nil {
		t.Error("a request with a long ID is kept; want it left out")
	}
	c.Close()
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			if n := len(a.Value.String()); n > maxMethod {
				t.Errorf("the attribute %s has %d bytes; want at most maxMethod", a.Key, n)
			}
		}
	}
}

// TestTracingNeedsAnEndpoint reads settings from the environment. Without an endpoint there must be
// no Tracer. For an invalid setting, the error must name its variable. A nil Tracer must work and
// do nothing.
func TestTracingNeedsAnEndpoint(t *testing.T) {
	from := func(env map[string]string) (*Tracer, error) {
		return FromEnv(func(name string) string { return env[name] }, Service{Name: "test"}, slog.New(slog.DiscardHandler))
	}
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, env := range []map[string]string{
		{}, {endpoint: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, {endpoint: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		if tracer, err := from(env); tracer != nil || err != nil {
			t.Errorf("New with the environment %v = %v, %v; want no tracer and no error", env, tracer, err)
		}
	}
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_SAMPLER": "jaeger_remote", "OTEL_TRACES_SAMPLER_ARG": "2",
		"OTEL_EXPORTER_OTLP_HEADERS": "key", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1s", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
		"OTEL_EXPORTER_OTLP_CERTIFICATE": "/none", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/none", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector:4318",
	} {
		if _, err := from(map[string]string{endpoint: "http://127.0.0.1:1", name: value}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New with %s=%s: %v; want an error that names the variable", name, value, err)
		}
	}
	tracer, err := from(map[string]string{endpoint: "http://127.0.0.1:1"})
	if err != nil || tracer == nil {
		t.Fatalf("%v, %v; want a Tracer", tracer, err)
	}
	if err := tracer.Close(context.Background()); err != nil {
		t.Error(err)
	}
	var off *Tracer
	c := off.Conn(Connection{})
	r := c.Relay(peek(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`), 1)
	r.Sent(nil)
	r.ToHost()
	r.AnsweredHere()
	c.Answered(peek(t, `{"jsonrpc":"2.0","id":1,"result":null}`), 1)
	c.Close()
}

// BenchmarkRequest measures what the relay spends on a request and its answer without a Tracer,
// with a sampler that traces nothing, and with a sampler that traces all.
func BenchmarkRequest(b *testing.B) {
	request := peek(b, `{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"channel":"ahp-chat:/1"}}`)
	answer := peek(b, `{"jsonrpc":"2.0","id":1,"result":null}`)
	for _, sampler := range []string{"off", "always_off", "always_on"} {
		b.Run(sampler, func(b *testing.B) {
			var tracer *Tracer
			if sampler != "off" {
				root, parentBased, err := samplerOf(sampler, "")
				if err != nil {
					b.Fatal(err)
				}
				// The exporter discards batches, so that the benchmark measures only the requests.
				if tracer, err = newTracer(sdktrace.WithBatcher(tracetest.NewNoopExporter()), root, parentBased, Service{Name: "bench"}); err != nil {
					b.Fatal(err)
				}
				defer func() { _ = tracer.Close(b.Context()) }()
			}
			c := tracer.Conn(Connection{ID: "1", Tenant: "acme", Host: "laptop", Full: true})
			b.ReportAllocs()
			for b.Loop() {
				c.Relay(request, 100).Sent(nil)
				c.Answered(answer, 50)
			}
		})
	}
}
