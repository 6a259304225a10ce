// All mixers, as an X-macro list without include guard: define LINNET_MIXER(Name), then include
// this. Each name is part of three function names. For example, Gla is part of GlaInfo() in
// model/mixers/gla.cc, GlaMixerKind() in nn/mixer_*.cc and RuntimeGla() in runtime/mixer_*.cc.
#ifndef LINNET_MIXER
#define LINNET_MIXER(Name)
#endif

LINNET_MIXER(CausalLinear)
LINNET_MIXER(Linear)
LINNET_MIXER(Full)
LINNET_MIXER(Kernel)
LINNET_MIXER(Reformer)
LINNET_MIXER(GatedDeltaNet)
LINNET_MIXER(DeltaNet)
LINNET_MIXER(Gla)
LINNET_MIXER(Retention)
LINNET_MIXER(Kda)
LINNET_MIXER(Gdn2)
LINNET_MIXER(GatedDeltaProduct)
LINNET_MIXER(Ssd)
LINNET_MIXER(Hgrn)
LINNET_MIXER(Rwkv7)

#undef LINNET_MIXER
