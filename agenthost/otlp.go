package agenthost

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// Log channels have no state: records without a subscriber are lost.
const (
	otlpScheme = "ahp-otlp:"
	otlpPrefix = otlpScheme + "//logs/" // followed by a level
)

// A logLevel is an OpenTelemetry severity.
type logLevel struct {
	number int
	name   string
	slog   slog.Level
}

var (
	levelTrace = logLevel{1, "trace", slog.LevelDebug - 4}
	levelInfo  = logLevel{9, "info", slog.LevelInfo}
	levelError = logLevel{17, "error", slog.LevelError}

	// logThresholds maps a channel's level names to severities.
	logThresholds = map[string]int{"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17}
)

func isLogChannel(uri string) bool {
	_, ok := logThresholds[strings.TrimPrefix(uri, otlpPrefix)]
	return ok && strings.HasPrefix(uri, otlpPrefix)
}

// A log record in OpenTelemetry's form.
type (
	otlpLogs struct {
		ResourceLogs [1]resourceLogs `json:"resourceLogs"`
	}
	resourceLogs struct {
		Resource struct {
			Attributes [0]struct{} `json:"attributes"`
		} `json:"resource"`
		ScopeLogs [1]scopeLogs `json:"scopeLogs"`
	}
	scopeLogs struct {
		Scope struct {
			Name string `json:"name"`
		} `json:"scope"`
		LogRecords [1]logRecord `json:"logRecords"`
	}
	logRecord struct {
		TimeUnixNano         string `json:"timeUnixNano"`
		ObservedTimeUnixNano string `json:"observedTimeUnixNano"`
		SeverityNumber       int    `json:"severityNumber"`
		SeverityText         string `json:"severityText"`
		Body                 struct {
			StringValue string `json:"stringValue"`
		} `json:"body"`
	}
)

// logLocked logs a record and notifies log channels' subscribers.
func (h *core) logLocked(level logLevel, format string, args ...any) {
	ctx := context.Background()
	if h.logSubs == 0 && !h.log.Enabled(ctx, level.slog) {
		return
	}
	text := fmt.Sprintf(format, args...)
	h.log.Log(ctx, level.slog, "host event", "text", text)
	if h.logSubs == 0 {
		return
	}
	var logs otlpLogs
	scope := &logs.ResourceLogs[0].ScopeLogs[0]
	scope.Scope.Name = "agent-host"
	record := &scope.LogRecords[0]
	record.TimeUnixNano = strconv.FormatInt(h.cfg.Now().UnixMilli()*1e6, 10)
	record.ObservedTimeUnixNano = record.TimeUnixNano
	record.SeverityNumber, record.SeverityText = level.number, level.name
	record.Body.StringValue = text
	for name, threshold := range logThresholds {
		if level.number >= threshold {
			h.exportLocked(otlpPrefix+name, logs)
		}
	}
}

func (h *core) exportLocked(channel string, logs otlpLogs) {
	var frame []byte
	for _, cl := range h.clients {
		c := cl.newest()
		if c == nil || c.subs[channel] == nil {
			continue
		}
		if frame == nil {
			frame = notificationFrame("otlp/exportLogs", encode(struct {
				Channel string   `json:"channel"`
				Payload otlpLogs `json:"payload"`
			}{channel, logs}))
		}
		c.queueLocked(frame)
	}
}
