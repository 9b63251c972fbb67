package test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/internal/tracing"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A spanCollector is an OpenTelemetry collector that receives spans over HTTP.
type spanCollector struct {
	*httptest.Server

	mu    sync.Mutex
	spans []collected
	seen  []collected // spans of the clients before the current one
}

type collected struct {
	service string
	*spanpb.Span
}

func newSpanCollector(t *testing.T) *spanCollector {
	c := &spanCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		data, err := io.ReadAll(body)
		var request spanpb.TracesData // encoded like an ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(data, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("a request to %s: %v; want spans at /v1/traces", r.URL.Path, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, from := range request.ResourceSpans {
			for _, scope := range from.ScopeSpans {
				for _, span := range scope.Spans {
					c.spans = append(c.spans, collected{valueOf(from.Resource.Attributes, "service.name"), span})
				}
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// tracer returns a tracer that sends a service's spans to the collector.
func (c *spanCollector) tracer(t *testing.T, service string) *tracing.Tracer {
	t.Helper()
	getenv := func(name string) string { return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL}[name] }
	tracer, err := tracing.FromEnv(getenv, tracing.Service{Name: service}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracer.Close(context.WithoutCancel(t.Context())) })
	return tracer
}

// of returns the received spans for a method, by name, and their trace's ID. A span's
// name begins with its method.
func (c *spanCollector) of(t *testing.T, method string) (spans map[string]collected, trace string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	spans = map[string]collected{}
	for _, s := range c.spans {
		if s.Name == "relay "+method || s.Name == "host-agent "+method {
			trace = hex.EncodeToString(s.TraceId)
		}
	}
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == trace {
			name, _, _ := strings.Cut(s.Name, " ")
			spans[name] = s
		}
	}
	return spans, trace
}

func valueOf[A interface {
	GetKey() string
	GetValue() V
}, V interface{ GetStringValue() string }](attributes []A, key string) string {
	for _, a := range attributes {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// withHeader is a transport that adds a header to a client's handshake.
type withHeader struct{ name, value string }

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(h.name, h.value)
	return http.DefaultTransport.RoundTrip(r)
}

// Relay and host-agent send spans to one collector while a client sends requests. The
// spans of each request form one trace with the right parents, and contain no content.
func TestEachRequestIsOneTrace(t *testing.T) {
	spans := newSpanCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", spans.URL) // the OpenTelemetry library reads this variable
	ofRelay, ofAgent := spans.tracer(t, "ahp-relay"), spans.tracer(t, "ahp-host-agent")
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{
		Upstream: host.server.URL(),
		Agent:    hostagent.Config{Upstream: hostagent.Upstream{URL: host.server.URL()}, Tracer: ofAgent},
		Relay:    gateway.RelayConfig{Gateway: gateway.Config{Tracer: ofRelay}},
	})
	const (
		header = "00-11111111111111111111111111111111-2222222222222222-01"
		meta   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		secret = "what-nobody-may-read"
	)
	var tokens []string
	for _, who := range []struct {
		name   string
		access auth.Access
	}{{"full", auth.AccessWrite}, {"look", auth.AccessRead}} {
		token, err := s.Token(func(c *auth.Client) { c.Access, c.Subject = who.access, who.name })
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		c, err := refclient.Dial(ctx, s.URL(stack.Host), refclient.Options{Token: token, HTTPClient: &http.Client{Transport: withHeader{"Traceparent", header}}})
		if err != nil {
			t.Fatal(err)
		}
		call := func(method string, params map[string]any) {
			params["channel"], params["text"] = "ahp-root://", secret
			_, _ = c.Call(ctx, method, params) // the host refuses some requests
		}
		call("initialize", map[string]any{"clientId": who.name, "protocolVersions": []string{"0.9.0"}})
		call("ping", map[string]any{"_meta": map[string]any{"traceparent": meta}})
		if who.name == "full" {
			call("listSessions", map[string]any{})
			call("_large", map[string]any{"pad": strings.Repeat("x", 200<<10)})
		} else {
			call("createSession", map[string]any{})
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if who.name == "full" { // the next client sends requests with the same methods
			spans.check(t, ofRelay, ofAgent, map[string]wantedTrace{
				"ping":         {meta, []string{"relay", "publish", "host-agent", "host"}, "ok"},
				"listSessions": {header, []string{"relay", "publish", "host-agent", "host"}, "ok"},
				"_large":       {header, []string{"relay", "publish", "host-agent", "host"}, "ok"},
			})
		}
	}
	spans.check(t, ofRelay, ofAgent, map[string]wantedTrace{
		"ping":          {"", []string{"relay", "publish", "host-agent", "host"}, "ok"},
		"createSession": {"", []string{"relay", "publish", "host-agent"}, "error"},
	})
	for _, s := range spans.seen {
		text := fmt.Sprint(s.Span)
		if strings.Contains(text, secret) || strings.Contains(text, tokens[0]) || strings.Contains(text, tokens[1]) {
			t.Errorf("a span contains a part of a message, or a token: %s", text)
		}
	}
}

// A wantedTrace describes the expected trace of a request: the client's own span, the
// spans of relay and host-agent in order, and the outcome in the relay's span.
type wantedTrace struct {
	parent  string // traceparent of the client's span; "": the client has none
	spans   []string
	outcome string
}

// check waits until the collector has the spans for each method in want, and compares
// them.
func (c *spanCollector) check(t *testing.T, relay, agent *tracing.Tracer, want map[string]wantedTrace) {
	t.Helper()
	for method, w := range want {
		var got map[string]collected
		var trace string
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if err := relay.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := agent.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, trace = c.of(t, method); len(got) == len(w.spans) && (w.parent == "" || strings.Contains(w.parent, trace)) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: spans %v in trace %s; want %v in %s", method, got, trace, w.spans, w.parent)
			}
		}
		above := ""
		if w.parent != "" {
			above = strings.Split(w.parent, "-")[2]
		}
		for _, name := range w.spans {
			span, ok := got[name]
			if parent := hex.EncodeToString(span.GetParentSpanId()); !ok || parent != above {
				t.Errorf("%s: span %s is below %q; want %q", method, name, parent, above)
			}
			service := "ahp-relay"
			if slices.Contains([]string{"host-agent", "host"}, name) {
				service = "ahp-host-agent"
			}
			if span.service != service {
				t.Errorf("%s: span %s is of %s; want %s", method, name, span.service, service)
			}
			above = hex.EncodeToString(span.GetSpanId())
		}
		if outcome := valueOf(got["relay"].Attributes, "ahp.outcome"); outcome != w.outcome {
			t.Errorf("%s: outcome %q; want %q", method, outcome, w.outcome)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.spans = append(c.seen, c.spans...), nil
}
