package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"ahprelay/internal/retryafter"
)

// An exporter sends spans by OTLP over HTTP with Protocol Buffers. OpenTelemetry's own
// exporter would add gRPC, a sixth of a program's size.
type exporter struct {
	url     string
	headers http.Header
	gzip    bool
	timeout time.Duration // for all attempts to send one batch
	http    *http.Client
}

const (
	exportTimeout = 10 * time.Second // the specification's default
	maxReply      = 64 << 10
)

// addHeaders reads a list of name=value, and reports whether it is well formed.
func (e *exporter) addHeaders(list string) bool {
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil {
			return false
		}
		e.headers.Set(strings.TrimSpace(name), value)
	}
	return true
}

// newExporter reads the environment variables defined in OpenTelemetry's specification
// "OpenTelemetry Protocol Exporter". Variables for traces override those for all signals.
func newExporter(getenv func(string) string) (*exporter, error) {
	of := func(name string) (value, from string) {
		from = "OTEL_EXPORTER_OTLP_TRACES_" + name
		if value = getenv(from); value == "" {
			from = "OTEL_EXPORTER_OTLP_" + name
			value = getenv(from)
		}
		return value, from
	}
	endpoint, from := of("ENDPOINT")
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s is %q; want an address such as http://127.0.0.1:4318", from, endpoint)
	}
	if from == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1/traces")
	}
	e := &exporter{url: u.String(), headers: http.Header{}, timeout: exportTimeout}
	if text, from := of("HEADERS"); !e.addHeaders(text) {
		return nil, fmt.Errorf("%s: want name=value, separated by commas", from)
	}
	switch text, from := of("COMPRESSION"); text {
	case "gzip":
		e.gzip = true
	case "", "none":
	default:
		return nil, fmt.Errorf("%s is %q; want gzip or none", from, text)
	}
	if text, from := of("TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return nil, fmt.Errorf("%s is %q; want milliseconds", from, text)
		}
		e.timeout = time.Duration(ms) * time.Millisecond
	}
	certificates, err := exportTLS(of)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = certificates
	e.http = &http.Client{Transport: transport}
	return e, nil
}

// exportTLS returns the TLS settings for the collector. It reads the environment variables that
// name the files with the collector's certificate authority and the client certificate.
func exportTLS(of func(string) (value, from string)) (*tls.Config, error) {
	cfg := &tls.Config{}
	if file, from := of("CERTIFICATE"); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM", from, file)
		}
	}
	certificate, from := of("CLIENT_CERTIFICATE")
	key, _ := of("CLIENT_KEY")
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// ExportSpans sends a batch, repeatedly if the collector is busy or unreachable.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	// TracesData has the same encoding as ExportTraceServiceRequest, which is defined in
	// gRPC's package.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: resourceSpans(spans)})
	if err != nil {
		return err
	}
	if e.gzip {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err = w.Write(body)
		if err = errors.Join(err, w.Close()); err != nil {
			return err
		}
		body = b.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	_, err = backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, e.send(ctx, body) }, backoff.WithMaxElapsedTime(e.timeout))
	return err
}

func (e *exporter) Shutdown(context.Context) error {
	e.http.CloseIdleConnections()
	return nil
}

// send tries to send a body once. The error is permanent if the specification forbids a
// repetition.
func (e *exporter) send(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	request.Header = e.headers.Clone()
	request.Header.Set("Content-Type", "application/x-protobuf")
	if e.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := e.http.Do(request)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxReply)) // so that the connection can be used again
	_ = response.Body.Close()
	switch code := response.StatusCode; {
	case code/100 == 2:
		return nil
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		if after := retryafter.Of(response.Header, e.timeout); after > 0 {
			return &backoff.RetryAfterError{Duration: after}
		}
		return fmt.Errorf("%s: %s", e.url, response.Status)
	default:
		return backoff.Permanent(fmt.Errorf("%s: %s", e.url, response.Status))
	}
}

// resourceSpans converts spans to OTLP. All have this process as resource, and the scope
// of the one tracer.
func resourceSpans(spans []sdktrace.ReadOnlySpan) []*tracepb.ResourceSpans {
	if len(spans) == 0 {
		return nil
	}
	resource, scope := spans[0].Resource(), spans[0].InstrumentationScope()
	in := &tracepb.ScopeSpans{Scope: &commonpb.InstrumentationScope{Name: scope.Name, Version: scope.Version}}
	for _, s := range spans {
		in.Spans = append(in.Spans, span(s))
	}
	return []*tracepb.ResourceSpans{{
		Resource:  &resourcepb.Resource{Attributes: keyValues(resource.Attributes())},
		SchemaUrl: resource.SchemaURL(), ScopeSpans: []*tracepb.ScopeSpans{in},
	}}
}

// span converts a span to OTLP. This program's spans have neither events nor links.
func span(s sdktrace.ReadOnlySpan) *tracepb.Span {
	c := s.SpanContext()
	id, traceID := c.SpanID(), c.TraceID()
	p := &tracepb.Span{
		TraceId: traceID[:], SpanId: id[:], TraceState: c.TraceState().String(), Name: s.Name(), Flags: flags(c, s.Parent()),
		Kind:              kinds[s.SpanKind()],
		StartTimeUnixNano: uint64(s.StartTime().UnixNano()), EndTimeUnixNano: uint64(s.EndTime().UnixNano()),
		Attributes: keyValues(s.Attributes()), DroppedAttributesCount: uint32(s.DroppedAttributes()),
		Status: &tracepb.Status{Code: statuses[s.Status().Code], Message: s.Status().Description},
	}
	if parent := s.Parent().SpanID(); parent.IsValid() {
		p.ParentSpanId = parent[:]
	}
	return p
}

// flags returns a span's trace flags, including whether its parent is in another process.
func flags(of, parent trace.SpanContext) uint32 {
	f := uint32(of.TraceFlags()) | uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if parent.IsRemote() {
		f |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return f
}

var kinds = map[trace.SpanKind]tracepb.Span_SpanKind{
	trace.SpanKindInternal: tracepb.Span_SPAN_KIND_INTERNAL, trace.SpanKindServer: tracepb.Span_SPAN_KIND_SERVER,
	trace.SpanKindClient: tracepb.Span_SPAN_KIND_CLIENT, trace.SpanKindProducer: tracepb.Span_SPAN_KIND_PRODUCER,
	trace.SpanKindConsumer: tracepb.Span_SPAN_KIND_CONSUMER,
}

var statuses = map[codes.Code]tracepb.Status_StatusCode{codes.Ok: tracepb.Status_STATUS_CODE_OK, codes.Error: tracepb.Status_STATUS_CODE_ERROR}

func keyValues(list []attribute.KeyValue) []*commonpb.KeyValue {
	var out []*commonpb.KeyValue
	for _, a := range list {
		out = append(out, &commonpb.KeyValue{Key: string(a.Key), Value: value(a.Value)})
	}
	return out
}

// value converts an attribute's value. Types that this program does not use become text.
func value(v attribute.Value) *commonpb.AnyValue {
	if v.Type() == attribute.INT64 {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v.AsInt64()}}
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v.String()}}
}
