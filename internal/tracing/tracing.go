package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// A Tracer makes spans. A nil Tracer makes none. It is safe for concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	root     sdktrace.Sampler // decides for traces not begun by a client
}

// Service describes this process in its spans.
type Service struct {
	Name     string // ahp-relay or ahp-host-agent; OTEL_SERVICE_NAME overrides it
	Version  string
	Instance string // instance of the process; may be empty
}

// FromEnv returns a Tracer configured by OpenTelemetry's environment variables. It
// returns nil unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
// names a collector (OTLP over HTTP). Close ends it.
func FromEnv(getenv func(string) string, service Service, log *slog.Logger) (*Tracer, error) {
	endpoint := getenv("OTEL_EXPORTER_OTLP_ENDPOINT") + getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if endpoint == "" || getenv("OTEL_SDK_DISABLED") == "true" || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		if protocol := getenv(name); protocol != "" && protocol != "http/protobuf" {
			return nil, fmt.Errorf("%s is %q; only http/protobuf is supported", name, protocol)
		}
	}
	root, parentBased, err := samplerOf(getenv("OTEL_TRACES_SAMPLER"), getenv("OTEL_TRACES_SAMPLER_ARG"))
	if err != nil {
		return nil, err
	}
	exporter, err := newExporter(getenv)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(seldom(log))
	return newTracer(sdktrace.WithBatcher(exporter), root, parentBased, service)
}

// newTracer returns a Tracer that sends spans to the given destination.
func newTracer(to sdktrace.TracerProviderOption, root sdktrace.Sampler, parentBased bool, service Service) (*Tracer, error) {
	is := []attribute.KeyValue{attribute.String("service.name", service.Name), attribute.String("service.version", service.Version)}
	if service.Instance != "" {
		is = append(is, attribute.String("service.instance.id", service.Instance))
	}
	described, err := resource.New(context.Background(), resource.WithAttributes(is...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	sampler := root
	if parentBased {
		sampler = sdktrace.ParentBased(root)
	}
	provider := sdktrace.NewTracerProvider(to, sdktrace.WithSampler(sampler), sdktrace.WithIDGenerator(derivedIDs{}), sdktrace.WithResource(described))
	return &Tracer{provider, provider.Tracer("ahprelay"), root}, nil
}

// Close sends unsent spans until ctx ends. Later spans are not recorded.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Flush sends ended spans.
func (t *Tracer) Flush(ctx context.Context) error { return t.provider.ForceFlush(ctx) }

// samplerOf returns the root sampler for OTEL_TRACES_SAMPLER, and whether spans with a
// parent follow their parent instead ("General SDK Configuration" of OpenTelemetry's
// specification). The SDK reads the variable too, but does not return the sampler. A
// ConnTracer needs it: the host-agent repeats the relay's decision about a trace begun by the
// relay.
func samplerOf(name, arg string) (root sdktrace.Sampler, parentBased bool, err error) {
	ratio := 1.0
	if arg != "" {
		if ratio, err = strconv.ParseFloat(arg, 64); err != nil || ratio < 0 || ratio > 1 {
			return nil, false, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; want 0 to 1", arg)
		}
	}
	switch name {
	case "", "parentbased_always_on":
		return sdktrace.AlwaysSample(), true, nil
	case "always_on":
		return sdktrace.AlwaysSample(), false, nil
	case "always_off":
		return sdktrace.NeverSample(), false, nil
	case "parentbased_always_off":
		return sdktrace.NeverSample(), true, nil
	case "traceidratio":
		return sdktrace.TraceIDRatioBased(ratio), false, nil
	case "parentbased_traceidratio":
		return sdktrace.TraceIDRatioBased(ratio), true, nil
	}
	return nil, false, fmt.Errorf("OTEL_TRACES_SAMPLER is %q; want always_on, always_off, traceidratio, or one of these with the prefix parentbased_", name)
}

// errorsEvery is the shortest time between logged errors.
const errorsEvery = time.Minute

// seldom logs an error now and then: the SDK reports one for each batch.
func seldom(log *slog.Logger) otel.ErrorHandlerFunc {
	line := rate.Sometimes{Interval: errorsEvery}
	return func(err error) {
		line.Do(func() { log.Warn("traces not exported", "error", err) })
	}
}
