// Every mixer, once: NameInfo() in model/mixers/, NameMixerKind() in nn/mixer_*.cc, RuntimeName() in
// runtime/mixer_*.cc. No include guard: define LINNET_MIXER(Name), then include this.
#ifndef LINNET_MIXER
#define LINNET_MIXER(Name)
#endif

LINNET_MIXER(CausalLinear)
LINNET_MIXER(Linear)
LINNET_MIXER(Full)
LINNET_MIXER(Kernel)
LINNET_MIXER(Reformer)

#undef LINNET_MIXER
