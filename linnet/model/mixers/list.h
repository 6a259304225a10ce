// Every mixer, once (no include guard: each user defines LINNET_MIXER): NameInfo() in model/mixers/, NameMixerKind() in nn/mixer_*.cc and RuntimeName() in
// runtime/mixer_*.cc.
LINNET_MIXER(CausalLinear)
LINNET_MIXER(Linear)
LINNET_MIXER(Full)
LINNET_MIXER(Kernel)
LINNET_MIXER(Reformer)
