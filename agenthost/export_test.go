package agenthost

// The bounds of turns are a sixteenth and a tenth in tests, which exceed them:
// the race detector makes each copied byte expensive.
func init() { maxTurnBytes, maxTurnTools = 1<<20, 200 }

// Serve lets tests of another package serve a connection.
func (h *Host) Serve(l link) error { return h.serve(l) }
