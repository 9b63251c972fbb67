package tracing

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A collector is an OTLP server with TLS that records batches. It answers the first requests with
// the given status codes, and all later ones with 200.
type collector struct {
	*httptest.Server
	answers  []int
	requests []*http.Request
	spans    []*tracepb.ResourceSpans
}

func newCollector(t *testing.T, answers ...int) (c *collector, env map[string]string) {
	t.Helper()
	c = &collector{answers: answers}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests = append(c.requests, r)
		if len(c.answers) > 0 {
			w.WriteHeader(c.answers[0])
			c.answers = c.answers[1:]
			return
		}
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		var data tracepb.TracesData
		bytes, err := io.ReadAll(body)
		if err == nil {
			err = proto.Unmarshal(bytes, &data)
		}
		if err != nil {
			t.Error(err)
		}
		c.spans = append(c.spans, data.ResourceSpans...)
	}))
	t.Cleanup(c.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return c, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL + "/otlp", "OTEL_EXPORTER_OTLP_CERTIFICATE": authority,
		"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, tenant=a",
	}
}

// send exports a span and its child to the collector in env, and returns the error of the export.
func send(t *testing.T, env map[string]string) error {
	t.Helper()
	tracer, err := FromEnv(func(name string) string { return env[name] }, Service{Name: "ahp-relay", Version: "1.2.3"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tracer.Close(context.WithoutCancel(t.Context())) }()
	ctx, outer := tracer.tracer.Start(t.Context(), "outer", trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("text", "a"), attribute.Int("number", 7)))
	_, inner := tracer.tracer.Start(ctx, "inner")
	inner.SetStatus(codes.Error, "broken")
	inner.End()
	outer.End()
	return tracer.Flush(t.Context())
}

func TestSpansReachALateCollector(t *testing.T) {
	c, env := newCollector(t, http.StatusServiceUnavailable) // the first request fails
	if err := send(t, env); err != nil {
		t.Fatal(err)
	}
	r := c.requests[len(c.requests)-1]
	if len(c.requests) != 2 || r.URL.Path != "/otlp/v1/traces" || r.Header.Get("Authorization") != "Bearer x" || r.Header.Get("Tenant") != "a" {
		t.Errorf("%d requests, the last to %s with the header %v; want 2, to /otlp/v1/traces, with the configured header", len(c.requests), r.URL, r.Header)
	}
	if len(c.spans) != 1 || len(c.spans[0].ScopeSpans) != 1 || len(c.spans[0].ScopeSpans[0].Spans) != 2 {
		t.Fatalf("%v; want two spans of a process", c.spans)
	}
	inner, outer := c.spans[0].ScopeSpans[0].Spans[0], c.spans[0].ScopeSpans[0].Spans[1]
	if !cmp.Equal(inner.ParentSpanId, outer.SpanId) || !cmp.Equal(inner.TraceId, outer.TraceId) || len(outer.ParentSpanId) > 0 {
		t.Errorf("the span %v is not the child of %v; want its parent", inner, outer)
	}
	if outer.Kind != tracepb.Span_SPAN_KIND_SERVER || outer.EndTimeUnixNano < outer.StartTimeUnixNano || outer.StartTimeUnixNano == 0 {
		t.Error(outer)
	}
	if inner.Status.Code != tracepb.Status_STATUS_CODE_ERROR || inner.Status.Message != "broken" {
		t.Error(inner)
	}
	got := map[string]string{}
	for _, a := range append(outer.Attributes, c.spans[0].Resource.Attributes...) {
		got[a.Key] = strings.Join(strings.Fields(a.Value.String()), "") // protobuf varies the spaces
	}
	for key, want := range map[string]string{
		"text": `string_value:"a"`, "number": "int_value:7",
		"service.name": `string_value:"ahp-relay"`, "service.version": `string_value:"1.2.3"`,
	} {
		if got[key] != want {
			t.Errorf("%s is %q; want %q", key, got[key], want)
		}
	}
}

func TestRefusedBatchesAreNotRepeated(t *testing.T) {
	c, env := newCollector(t, http.StatusBadRequest)
	if err := send(t, env); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("the export of a refused batch = %v; want the collector's answer", err)
	}
	if len(c.requests) != 1 {
		t.Errorf("%d requests; want 1", len(c.requests))
	}
}

// TestBusyCollectorIsNotAskedAgainTooEarly exports to a collector that asks for a pause longer than
// the timeout of the export, which is below a second. The exporter must not repeat the request.
func TestBusyCollectorIsNotAskedAgainTooEarly(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "5")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	err := send(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_TIMEOUT": "900"})
	if n := requests.Load(); err == nil || n > 1 {
		t.Errorf("the collector received %d requests, and the export = %v; want one, and an error", n, err)
	}
}
