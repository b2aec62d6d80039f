// Fused training kernels: hyper-connections, masked softmax with a sink, norm + rotary, SwiGLU of
// routed rows, cross entropy. One thread; the two training processes are the parallelism.
//
// Conventions: row-major, `bf` = bfloat16 bits, widths are multiples of 16. Gradients named d* are
// written; those named g* are added to. kernels.py holds the plain torch versions they are tested
// against.
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf;
typedef int64_t i64;

static inline float up(bf x) {
  union { uint32_t u; float f; } v = {(uint32_t)x << 16};
  return v.f;
}
static inline bf down(float f) {
  union { float f; uint32_t u; } v = {f};
  return (bf)((v.u + 0x7FFF + ((v.u >> 16) & 1)) >> 16);
}
static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// ---- hyper-connections -------------------------------------------------------------------------

#define LANES 16
#define MAX_ROUNDS 32
typedef float lanes[LANES];

// Sinkhorn of 16 tokens. c[j*4+k]. states keeps the result of every step for the way back.
static void sinkhorn(lanes *c, int rounds, float eps, lanes (*states)[16], lanes (*inverse)[4]) {
  int step = 0;
  for (int j = 0; j < 4; j++)
    for (int l = 0; l < LANES; l++) {
      float m = c[j * 4][l];
      for (int k = 1; k < 4; k++) m = fmaxf(m, c[j * 4 + k][l]);
      float e[4], s = 0;
      for (int k = 0; k < 4; k++) s += e[k] = expf(c[j * 4 + k][l] - m);
      for (int k = 0; k < 4; k++) c[j * 4 + k][l] = e[k] / s + eps;
    }
  if (states) memcpy(states[step], c, sizeof(lanes) * 16);
  for (int r = 0; r < 2 * rounds - 1; r++) {
    // even r: columns (sum over j), odd r: rows (sum over k)
    const int across = (r & 1) ? 1 : 4, along = (r & 1) ? 4 : 1;
    for (int a = 0; a < 4; a++)
      for (int l = 0; l < LANES; l++) {
        lanes *p = c + a * along;
        float inv = 1.0f / (p[0][l] + p[across][l] + p[2 * across][l] + p[3 * across][l] + eps);
        p[0][l] *= inv, p[across][l] *= inv, p[2 * across][l] *= inv, p[3 * across][l] *= inv;
        if (inverse) inverse[r][a][l] = inv;
      }
    step++;
    if (states) memcpy(states[step], c, sizeof(lanes) * 16);
  }
}

static void sinkhorn_back(lanes *d, int rounds, float eps, lanes (*states)[16], lanes (*inverse)[4]) {
  for (int r = 2 * rounds - 2; r >= 0; r--) {
    const int across = (r & 1) ? 1 : 4, along = (r & 1) ? 4 : 1;
    for (int a = 0; a < 4; a++)
      for (int l = 0; l < LANES; l++) {
        lanes *p = d + a * along, *y = states[r + 1] + a * along;
        float dot = 0;
        for (int q = 0; q < 4; q++) dot += p[q * across][l] * y[q * across][l];
        for (int q = 0; q < 4; q++) p[q * across][l] = (p[q * across][l] - dot) * inverse[r][a][l];
      }
  }
  for (int j = 0; j < 4; j++)
    for (int l = 0; l < LANES; l++) {
      float dot = 0;
      for (int k = 0; k < 4; k++) dot += d[j * 4 + k][l] * (states[0][j * 4 + k][l] - eps);
      for (int k = 0; k < 4; k++)
        d[j * 4 + k][l] = (d[j * 4 + k][l] - dot) * (states[0][j * 4 + k][l] - eps);
    }
}

static inline float square_mean(const float *x, int n) {
  float s = 0;
  for (int i = 0; i < n; i++) s += x[i] * x[i];
  return s / n;
}

// z [n,24] = X . fn^T on entry; out: rs [n] = rsqrt(mean X^2), A [n,4], P [n,4], C [n,16].
void hc_mix(const float *X, const float *z, const float *base, const float *scale, float *rs, float *A,
            float *P, float *C, int n, int D, int rounds, float hc_eps, float eps) {
  for (int t0 = 0; t0 < n; t0 += LANES) {
    lanes c[16];
    int m = n - t0 < LANES ? n - t0 : LANES;
    for (int l = 0; l < LANES; l++) {
      int t = t0 + (l < m ? l : m - 1);
      if (l < m) rs[t] = 1.0f / sqrtf(square_mean(X + (i64)t * 4 * D, 4 * D) + eps);
      for (int i = 0; i < 16; i++) c[i][l] = z[t * 24 + 8 + i] * rs[t] * scale[2] + base[8 + i];
    }
    sinkhorn(c, rounds, hc_eps, 0, 0);
    for (int l = 0; l < m; l++) {
      int t = t0 + l;
      for (int k = 0; k < 4; k++) {
        A[t * 4 + k] = sigmoid(z[t * 24 + k] * rs[t] * scale[0] + base[k]) + hc_eps;
        P[t * 4 + k] = 2 * sigmoid(z[t * 24 + 4 + k] * rs[t] * scale[1] + base[4 + k]);
      }
      for (int i = 0; i < 16; i++) C[t * 16 + i] = c[i][l];
    }
  }
}

// In: dA, dP, dC. Out: dz [n,24]; adds to gbase [24], gscale [3] and to gX the term through rs.
void hc_mix_back(const float *X, const float *z, const float *base, const float *scale, const float *rs,
                 const float *dA, const float *dP, const float *dC, float *dz, float *gX, float *gbase,
                 float *gscale, int n, int D, int rounds, float hc_eps) {
  static lanes states[2 * MAX_ROUNDS][16], inverse[2 * MAX_ROUNDS][4];
  for (int t0 = 0; t0 < n; t0 += LANES) {
    lanes c[16], d[16];
    int m = n - t0 < LANES ? n - t0 : LANES;
    for (int l = 0; l < LANES; l++) {
      int t = t0 + (l < m ? l : m - 1);
      for (int i = 0; i < 16; i++) {
        c[i][l] = z[t * 24 + 8 + i] * rs[t] * scale[2] + base[8 + i];
        d[i][l] = dC[t * 16 + i];
      }
    }
    sinkhorn(c, rounds, hc_eps, states, inverse);
    sinkhorn_back(d, rounds, hc_eps, states, inverse);
    for (int l = 0; l < m; l++) {
      int t = t0 + l;
      float g[24], drs = 0;
      for (int k = 0; k < 4; k++) {
        float a = sigmoid(z[t * 24 + k] * rs[t] * scale[0] + base[k]);
        float p = sigmoid(z[t * 24 + 4 + k] * rs[t] * scale[1] + base[4 + k]);
        g[k] = dA[t * 4 + k] * a * (1 - a);
        g[4 + k] = dP[t * 4 + k] * 2 * p * (1 - p);
      }
      for (int i = 0; i < 16; i++) g[8 + i] = d[i][l];
      for (int i = 0; i < 24; i++) {
        int s = i < 4 ? 0 : i < 8 ? 1 : 2;
        gbase[i] += g[i];
        gscale[s] += g[i] * z[t * 24 + i] * rs[t];
        drs += g[i] * scale[s] * z[t * 24 + i];
        dz[t * 24 + i] = g[i] * scale[s] * rs[t];
      }
      float f = -drs * rs[t] * rs[t] * rs[t] / (4 * D);
      const float *x = X + (i64)t * 4 * D;
      float *gx = gX + (i64)t * 4 * D;
      for (int i = 0; i < 4 * D; i++) gx[i] += f * x[i];
    }
  }
}

// xn = bf16(RMSNorm(sum_k A[k] X[k]; w)), ur [n] = the rsqrt.
void hc_collapse(const float *X, const float *A, const float *w, bf *xn, float *ur, int n, int D, float eps) {
  float u[4096];
  for (int t = 0; t < n; t++) {
    const float *x = X + (i64)t * 4 * D, *a = A + t * 4;
    for (int d = 0; d < D; d++) u[d] = a[0] * x[d] + a[1] * x[D + d] + a[2] * x[2 * D + d] + a[3] * x[3 * D + d];
    float r = ur[t] = 1.0f / sqrtf(square_mean(u, D) + eps);
    for (int d = 0; d < D; d++) xn[(i64)t * D + d] = down(u[d] * r * w[d]);
  }
}

void hc_collapse_back(const float *X, const float *A, const float *w, const float *ur, const bf *dxn, float *gX,
                      float *dA, float *gw, int n, int D) {
  float u[4096], du[4096];
  for (int t = 0; t < n; t++) {
    const float *x = X + (i64)t * 4 * D, *a = A + t * 4;
    float *gx = gX + (i64)t * 4 * D, r = ur[t], dot = 0;
    for (int d = 0; d < D; d++) {
      u[d] = (a[0] * x[d] + a[1] * x[D + d] + a[2] * x[2 * D + d] + a[3] * x[3 * D + d]) * r;
      float g = up(dxn[(i64)t * D + d]);
      gw[d] += g * u[d];
      du[d] = g * w[d];
      dot += du[d] * u[d];
    }
    dot /= D;
    float s[4] = {0, 0, 0, 0};
    for (int d = 0; d < D; d++) du[d] = (du[d] - dot * u[d]) * r;
    for (int k = 0; k < 4; k++) {
      float sum = 0, ak = a[k];
      for (int d = 0; d < D; d++) {
        sum += du[d] * x[k * D + d];
        gx[k * D + d] += ak * du[d];
      }
      s[k] = sum;
    }
    for (int k = 0; k < 4; k++) dA[t * 4 + k] = s[k];
  }
}

// Y[k] = P[k] o + sum_j C[j][k] X[j]; o is bf16. Widened once into a local row: with it and the
// restrict qualifiers the inner loops become vector code (a factor of five).
void hc_expand(const float *restrict X, const bf *restrict o, const float *restrict P, const float *restrict C,
               float *restrict Y, int n, int D) {
  float v[4096];
  for (int t = 0; t < n; t++) {
    const float *restrict x = X + (i64)t * 4 * D;
    float *restrict y = Y + (i64)t * 4 * D;
    for (int d = 0; d < D; d++) v[d] = up(o[(i64)t * D + d]);
    for (int k = 0; k < 4; k++) {
      const float p = P[t * 4 + k], c0 = C[t * 16 + k], c1 = C[t * 16 + 4 + k], c2 = C[t * 16 + 8 + k],
                  c3 = C[t * 16 + 12 + k];
      for (int d = 0; d < D; d++)
        y[k * D + d] = p * v[d] + c0 * x[d] + c1 * x[D + d] + c2 * x[2 * D + d] + c3 * x[3 * D + d];
    }
  }
}

void hc_expand_back(const float *restrict X, const bf *restrict o, const float *restrict P, const float *restrict C,
                    const float *restrict dY, float *restrict dX, bf *restrict dO, float *restrict dP,
                    float *restrict dC, int n, int D) {
  float v[4096];
  for (int t = 0; t < n; t++) {
    const float *restrict x = X + (i64)t * 4 * D, *restrict g = dY + (i64)t * 4 * D, *c = C + t * 16, *p = P + t * 4;
    float *restrict dx = dX + (i64)t * 4 * D;
    const float p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3];
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int d = 0; d < D; d++) v[d] = up(o[(i64)t * D + d]);
    for (int d = 0; d < D; d++) {
      float g0 = g[d], g1 = g[D + d], g2 = g[2 * D + d], g3 = g[3 * D + d];
      s0 += g0 * v[d], s1 += g1 * v[d], s2 += g2 * v[d], s3 += g3 * v[d];
    }
    dP[t * 4] = s0, dP[t * 4 + 1] = s1, dP[t * 4 + 2] = s2, dP[t * 4 + 3] = s3;
    for (int d = 0; d < D; d++) v[d] = p0 * g[d] + p1 * g[D + d] + p2 * g[2 * D + d] + p3 * g[3 * D + d];
    for (int d = 0; d < D; d++) dO[(i64)t * D + d] = down(v[d]);
    for (int j = 0; j < 4; j++) {
      const float c0 = c[j * 4], c1 = c[j * 4 + 1], c2 = c[j * 4 + 2], c3 = c[j * 4 + 3];
      float r0 = 0, r1 = 0, r2 = 0, r3 = 0;
      for (int d = 0; d < D; d++) {
        float g0 = g[d], g1 = g[D + d], g2 = g[2 * D + d], g3 = g[3 * D + d], xj = x[j * D + d];
        dx[j * D + d] = c0 * g0 + c1 * g1 + c2 * g2 + c3 * g3;
        r0 += g0 * xj, r1 += g1 * xj, r2 += g2 * xj, r3 += g3 * xj;
      }
      float *r = dC + t * 16 + j * 4;
      r[0] = r0, r[1] = r1, r[2] = r2, r[3] = r3;
    }
  }
}

// ---- attention ---------------------------------------------------------------------------------

// Row r belongs to query r / heads and head r % heads. Sw [rows,cw], Sg [rows,cg] raw scores in,
// probabilities out. range [queries,4]: columns [wlo,whi) of Sw and [glo,ghi) of Sg take part; chosen
// [queries,cg] (or null) narrows the second. mass [queries,cg] (or null) adds the heads' sums.
void attend_softmax(bf *Sw, bf *Sg, const int32_t *range, const uint8_t *chosen, const float *sink, float scale,
                    float *psink, float *mass, int queries, int heads, int cw, int cg) {
  float ew[4096], eg[16384];
  for (int r = 0; r < queries * heads; r++) {
    int q = r / heads;
    const int32_t *b = range + q * 4;
    bf *w = Sw + (i64)r * cw, *g = Sg + (i64)r * cg;
    const uint8_t *on = chosen ? chosen + (i64)q * cg : 0;
    float m = -1e30f, s = 0;
    for (int c = b[0]; c < b[1]; c++) ew[c] = up(w[c]) * scale, m = fmaxf(m, ew[c]);
    for (int c = b[2]; c < b[3]; c++) {
      eg[c] = on && !on[c] ? -1e30f : up(g[c]) * scale;
      m = fmaxf(m, eg[c]);
    }
    for (int c = b[0]; c < b[1]; c++) s += ew[c] = expf(ew[c] - m);
    for (int c = b[2]; c < b[3]; c++) s += eg[c] = expf(eg[c] - m);
    float es = expf(sink[r % heads] - m), inv = 1.0f / (s + es);
    psink[r] = es * inv;
    memset(w, 0, 2 * b[0]);
    for (int c = b[0]; c < b[1]; c++) w[c] = down(ew[c] * inv);
    if (b[1] < cw) memset(w + b[1], 0, 2 * (cw - b[1]));
    if (cg) {
      memset(g, 0, 2 * b[2]);
      for (int c = b[2]; c < b[3]; c++) g[c] = down(eg[c] * inv);
      if (b[3] < cg) memset(g + b[3], 0, 2 * (cg - b[3]));
      if (mass) {
        float *mq = mass + (i64)q * cg;
        for (int c = b[2]; c < b[3]; c++) mq[c] += eg[c] * inv;
      }
    }
  }
}

// dPw, dPg: gradients of the probabilities in, of the raw scores out.
void attend_softmax_back(const bf *Pw, const bf *Pg, bf *dPw, bf *dPg, const int32_t *range, float scale,
                         const float *psink, float *gsink, int queries, int heads, int cw, int cg) {
  for (int r = 0; r < queries * heads; r++) {
    const int32_t *b = range + (r / heads) * 4;
    const bf *w = Pw + (i64)r * cw, *g = Pg + (i64)r * cg;
    bf *dw = dPw + (i64)r * cw, *dg = dPg + (i64)r * cg;
    float dot = 0;
    for (int c = b[0]; c < b[1]; c++) dot += up(w[c]) * up(dw[c]);
    for (int c = b[2]; c < b[3]; c++) dot += up(g[c]) * up(dg[c]);
    gsink[r % heads] -= psink[r] * dot;
    memset(dw, 0, 2 * b[0]);
    for (int c = b[0]; c < b[1]; c++) dw[c] = down(up(w[c]) * (up(dw[c]) - dot) * scale);
    if (b[1] < cw) memset(dw + b[1], 0, 2 * (cw - b[1]));
    if (cg) {
      memset(dg, 0, 2 * b[2]);
      for (int c = b[2]; c < b[3]; c++) dg[c] = down(up(g[c]) * (up(dg[c]) - dot) * scale);
      if (b[3] < cg) memset(dg + b[3], 0, 2 * (cg - b[3]));
    }
  }
}

// ---- norm and rotary ---------------------------------------------------------------------------

static inline void rotate(float *v, const float *cs, int pairs, float sign) {
  for (int i = 0; i < pairs; i++) {
    float c = cs[2 * i], s = cs[2 * i + 1] * sign, a = v[2 * i], b = v[2 * i + 1];
    v[2 * i] = a * c - b * s;
    v[2 * i + 1] = a * s + b * c;
  }
}

// y = rope(norm(x)); x, y [n*heads, D] with row strides; w null = no norm; table [pos, 2*pairs] or null.
void norm_rope(const bf *x, int xs, const float *w, const float *table, const int32_t *pos, bf *y, float *rs,
               int n, int heads, int D, int pairs, float sign, float eps) {
  float v[4096];
  for (int r = 0; r < n * heads; r++) {
    const bf *xr = x + (i64)(r / heads) * xs + (r % heads) * D;
    float s = 0;
    for (int d = 0; d < D; d++) v[d] = up(xr[d]), s += v[d] * v[d];
    if (w) {
      float f = rs[r] = 1.0f / sqrtf(s / D + eps);
      for (int d = 0; d < D; d++) v[d] *= f * w[d];
    }
    if (table) rotate(v + D - 2 * pairs, table + (i64)pos[r / heads] * 2 * pairs, pairs, sign);
    for (int d = 0; d < D; d++) y[(i64)r * D + d] = down(v[d]);
  }
}

void norm_rope_back(const bf *x, int xs, const float *w, const float *table, const int32_t *pos, const float *rs,
                    const bf *dy, bf *dx, float *gw, int n, int heads, int D, int pairs, float sign) {
  float g[4096], u[4096];
  for (int r = 0; r < n * heads; r++) {
    const bf *xr = x + (i64)(r / heads) * xs + (r % heads) * D;
    for (int d = 0; d < D; d++) g[d] = up(dy[(i64)r * D + d]);
    if (table) rotate(g + D - 2 * pairs, table + (i64)pos[r / heads] * 2 * pairs, pairs, -sign);
    if (w) {
      float f = rs[r], dot = 0;
      for (int d = 0; d < D; d++) {
        u[d] = up(xr[d]) * f;
        gw[d] += g[d] * u[d];
        g[d] *= w[d];
        dot += g[d] * u[d];
      }
      dot /= D;
      for (int d = 0; d < D; d++) g[d] = (g[d] - dot * u[d]) * f;
    }
    for (int d = 0; d < D; d++) dx[(i64)r * D + d] = down(g[d]);
  }
}

// ---- experts -----------------------------------------------------------------------------------

// h [m,2I] = (gate | up), weight [m]; y [m,I] = weight * silu(min(gate,limit)) * clamp(up,+-limit).
void swiglu(const bf *h, const float *weight, bf *y, int m, int I, float limit) {
  for (int r = 0; r < m; r++)
    for (int i = 0; i < I; i++) {
      float g = fminf(up(h[(i64)r * 2 * I + i]), limit);
      float u = fmaxf(fminf(up(h[(i64)r * 2 * I + I + i]), limit), -limit);
      y[(i64)r * I + i] = down(g * sigmoid(g) * u * weight[r]);
    }
}

void swiglu_back(const bf *h, const float *weight, const bf *dy, bf *dh, float *dweight, int m, int I, float limit) {
  for (int r = 0; r < m; r++) {
    float sum = 0, wt = weight[r];
    const bf *hr = h + (i64)r * 2 * I;
    bf *dr = dh + (i64)r * 2 * I;
    for (int i = 0; i < I; i++) {
      float g0 = up(hr[i]), u0 = up(hr[I + i]), d = up(dy[(i64)r * I + i]);
      float g = fminf(g0, limit), u = fmaxf(fminf(u0, limit), -limit), s = sigmoid(g), a = g * s;
      sum += d * a * u;
      d *= wt;
      dr[i] = down(g0 > limit ? 0.0f : d * u * s * (1 + g * (1 - s)));
      dr[I + i] = down(fabsf(u0) > limit ? 0.0f : d * a);
    }
    dweight[r] = sum;
  }
}

// y[t] = sum over slots of rows[index[t][s]]  (index < 0: nothing).
void gather_sum(const bf *rows, const int32_t *index, bf *y, int n, int slots, int D) {
  float v[4096];
  for (int t = 0; t < n; t++) {
    memset(v, 0, 4 * D);
    for (int s = 0; s < slots; s++) {
      const bf *r = rows + (i64)index[t * slots + s] * D;
      for (int d = 0; d < D; d++) v[d] += up(r[d]);
    }
    for (int d = 0; d < D; d++) y[(i64)t * D + d] = down(v[d]);
  }
}

// ---- loss --------------------------------------------------------------------------------------

// logits [n,V] become their gradient, weight * (softmax - onehot). loss [n] unweighted.
void cross_entropy(bf *logits, const i64 *target, const float *weight, float *loss, i64 *best, int n, int V) {
  float e[8192];
  for (int t = 0; t < n; t++) {
    bf *x = logits + (i64)t * V;
    float m = -1e30f, s = 0;
    for (int i = 0; i < V; i++) e[i] = up(x[i]), m = fmaxf(m, e[i]);
    int arg = 0;
    for (int i = 0; i < V; i++)
      if (e[i] == m) { arg = i; break; }
    float right = e[target[t]];
    for (int i = 0; i < V; i++) s += e[i] = expf(e[i] - m);
    loss[t] = logf(s) + m - right;
    best[t] = arg;
    float f = weight[t] / s;
    for (int i = 0; i < V; i++) x[i] = down(e[i] * f);
    x[target[t]] = down(e[target[t]] * f - weight[t]);
  }
}

// ---- optimiser ---------------------------------------------------------------------------------

// One AdamW step; the gradient is (ga + gb) * gscale (two processes' sums).
void adam(float *value, const float *ga, const float *gb, float *m, float *v, i64 n, float gscale, float lr,
          float b1, float b2, float decay, float c1, float c2) {
  for (i64 i = 0; i < n; i++) {
    float g = (ga[i] + gb[i]) * gscale;
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    value[i] -= lr * (m[i] * c1 / (sqrtf(v[i] * c2) + 1e-10f) + decay * value[i]);
  }
}

// Muon's momentum: buffer = mu buffer + g; out = bf16((g + mu buffer)), the Nesterov direction.
void muon_momentum(const float *ga, const float *gb, float *buffer, float *out, i64 n, float gscale, float mu) {
  for (i64 i = 0; i < n; i++) {
    float g = (ga[i] + gb[i]) * gscale;
    buffer[i] = mu * buffer[i] + g;
    out[i] = g + mu * buffer[i];
  }
}

// ---- number formats (round trips; the bit-exact definitions are in reference/numerics.py) -------

static inline float power_of_two_ceiling(float t) {
  union { float f; uint32_t u; } v = {t};
  v.u = (v.u + 0x7FFFFF) & 0x7F800000;
  return v.f;
}
static inline float round_e4m3(float y) {
  union { float f; uint32_t u; } v = {fmaxf(fabsf(y), 0x1p-6f)};
  v.u &= 0x7F800000;
  float step = v.f * 0.125f;
  return rintf(y / step) * step;
}
static inline float round_e2m1(float y) {
  float a = fabsf(y), step = a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f;
  return rintf(y / step) * step;
}
static inline float clampf(float x, float m) { return fminf(fmaxf(x, -m), m); }

static inline float largest(const float *v, int n) {
  float m = 0;
  for (int i = 0; i < n; i++) m = fmaxf(m, fabsf(v[i]));
  return m;
}
static inline void q8_block(float *v) {
  float s = power_of_two_ceiling(fmaxf(largest(v, 32), 1e-4f) * (1.0f / 448.0f)), r = 1.0f / s;
  for (int i = 0; i < 32; i++) v[i] = round_e4m3(clampf(v[i] * r, 448.0f)) * s;
}
static inline void q4i_block(float *v) {
  float s = power_of_two_ceiling(fmaxf(largest(v, 32), 6 * 0x1p-126f) * (1.0f / 6.0f)), r = 1.0f / s;
  for (int i = 0; i < 32; i++) v[i] = round_e2m1(clampf(v[i] * r, 6.0f)) * s;
}
static inline void q4g_block(float *v) {
  float s = round_e4m3(fmaxf(largest(v, 16), 6 * 0x1p-9f) / 6.0f);
  for (int i = 0; i < 16; i++) v[i] = round_e2m1(clampf(v[i] / s, 6.0f)) * s;
}

#define IN_PLACE(name, block, width)                                                  \
  void name(bf *y, int n, int D) {                                                    \
    float v[width];                                                                   \
    for (i64 b = 0; b < (i64)n * D / width; b++) {                                    \
      for (int i = 0; i < width; i++) v[i] = up(y[b * width + i]);                    \
      block(v);                                                                       \
      for (int i = 0; i < width; i++) y[b * width + i] = down(v[i]);                  \
    }                                                                                 \
  }
IN_PLACE(quant_q8, q8_block, 32)
IN_PLACE(quant_q4i, q4i_block, 32)
IN_PLACE(quant_q4g, q4g_block, 16)

void quant_weight_fp4(const float *w, bf *out, i64 n) {
  float v[32];
  for (i64 b = 0; b < n / 32; b++) {
    memcpy(v, w + b * 32, 128);
    q4i_block(v);
    for (int i = 0; i < 32; i++) out[b * 32 + i] = down(v[i]);
  }
}

// rows and columns are multiples of 32: one scale per 32x32 tile.
void quant_weight_fp8(const float *w, bf *out, int rows, int columns) {
  for (int r = 0; r < rows; r += 32)
    for (int c = 0; c < columns; c += 32) {
      float m = 448 * 0x1p-126f;
      for (int i = 0; i < 32; i++) m = fmaxf(m, largest(w + (i64)(r + i) * columns + c, 32));
      float s = power_of_two_ceiling(m * (1.0f / 448.0f)), inv = 1.0f / s;
      for (int i = 0; i < 32; i++)
        for (int j = 0; j < 32; j++) {
          i64 at = (i64)(r + i) * columns + c + j;
          out[at] = down(round_e4m3(clampf(w[at] * inv, 448.0f)) * s);
        }
    }
}

// ---- selection ---------------------------------------------------------------------------------

static float kth_largest(float *v, int n, int k) {
  int lo = 0, hi = n - 1;
  while (lo < hi) {
    float pivot = v[(lo + hi) / 2];
    int i = lo, j = hi;
    while (i <= j) {
      while (v[i] > pivot) i++;
      while (v[j] < pivot) j--;
      if (i <= j) {
        float t = v[i];
        v[i++] = v[j];
        v[j--] = t;
      }
    }
    if (k <= j) hi = j;
    else if (k >= i) lo = i;
    else return v[k];
  }
  return v[k];
}

// S [queries*heads, columns] raw products, weight [queries, heads]: score = sum_h w relu(S). The k
// best columns of each query's visible range get chosen = 1 (ties: the lower column).
void select_top(const bf *S, const float *weight, const int32_t *range, uint8_t *chosen, int queries, int heads,
                int columns, int k) {
  float score[16384], copy[16384];
  for (int q = 0; q < queries; q++) {
    int lo = range[q * 4 + 2], hi = range[q * 4 + 3], n = hi - lo;
    uint8_t *on = chosen + (i64)q * columns;
    memset(on, 0, columns);
    if (n <= k) {
      if (n > 0) memset(on + lo, 1, n);
      continue;
    }
    memset(score, 0, 4 * n);
    for (int h = 0; h < heads; h++) {
      const bf *s = S + ((i64)q * heads + h) * columns + lo;
      float w = weight[q * heads + h];
      for (int c = 0; c < n; c++) score[c] += w * fmaxf(up(s[c]), 0.0f);
    }
    memcpy(copy, score, 4 * n);
    float bar = kth_largest(copy, n, k - 1);
    int above = 0;
    for (int c = 0; c < n; c++) above += on[lo + c] = score[c] > bar;
    for (int c = 0; c < n && above < k; c++)
      if (score[c] == bar) on[lo + c] = 1, above++;
  }
}
